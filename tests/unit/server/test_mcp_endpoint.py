"""Access over MCP: tools see what the visitor's own requests would see, and cookies do not count."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.access.visitor import COOKIE
from support.recorded_sample import REF
from support.two_namespaces import (
    ALLOWED_TOKEN,
    HIDDEN,
    UNKNOWN_TOKEN,
    bearer,
    kuberay_cookies,
    serve_two_namespaces,
    write_access_file,
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    directory = tmp_path_factory.mktemp("mcp")
    access_file = write_access_file(directory)
    with serve_two_namespaces(directory, auth="token", access_file=access_file, rate_limit=0, sql=True) as client:
        yield client


def call(client: TestClient, tool: str, arguments: dict[str, Any], headers: dict[str, str], **options: Any) -> Any:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    return client.post("/mcp", json=body, headers=headers, **options)


def test_sessions_of_other_namespaces_do_not_exist_for_a_visitor(client: TestClient) -> None:
    listed = call(client, "find_sessions", {}, bearer(ALLOWED_TOKEN)).json()["result"]
    assert REF.session in listed["content"][0]["text"]
    assert HIDDEN.cluster not in json.dumps(listed)
    for tool, more in (("get_overview", {}), ("query_sql", {"query": "select 1"}), ("search_logs", {"text": "x"})):
        result = call(client, tool, {"session": HIDDEN.path, **more}, bearer(ALLOWED_TOKEN)).json()["result"]
        assert result["isError"], tool
        assert "Forbidden" in result["content"][0]["text"]


def test_messages_need_a_token(client: TestClient) -> None:
    assert call(client, "find_sessions", {}, {}).status_code == 401
    assert call(client, "find_sessions", {}, bearer(UNKNOWN_TOKEN)).status_code in (401, 403)


def test_cookies_do_not_count(client: TestClient) -> None:
    client.cookies.set(COOKIE, ALLOWED_TOKEN)
    for name, value in kuberay_cookies(REF).items():
        client.cookies.set(name, value)
    try:
        response = call(client, "find_sessions", {}, {})
    finally:
        client.cookies.clear()
    assert REF.session not in response.text


def test_sql_needs_rights_to_the_namespace(client: TestClient) -> None:
    for ref, headers, status in (
        (REF, bearer(ALLOWED_TOKEN), 200), (HIDDEN, bearer(ALLOWED_TOKEN), 403),
        (REF, bearer(UNKNOWN_TOKEN), 403), (REF, {}, 401),
    ):  # fmt: skip
        response = client.post(f"{ref.url}api/history/sql", json={"query": "select 1"}, headers=headers)
        assert response.status_code == status, (ref, headers)


def test_sessions_that_tools_open_are_audited(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rayhistory.audit"):
        for ref in (REF, HIDDEN):
            call(client, "query_sql", {"session": ref.path, "query": "select 42"}, bearer(ALLOWED_TOKEN))
    lines = [(record.message, getattr(record, "query", "")) for record in caplog.records]
    assert ("visitor ran an SQL query", "select 42") in lines
    assert "access denied" in {message for message, _ in lines}


def test_calls_are_limited_like_other_expensive_requests(tmp_path: Path) -> None:
    access_file = write_access_file(tmp_path)
    with serve_two_namespaces(tmp_path, auth="token", access_file=access_file, rate_limit=30) as client:
        calls = [call(client, "get_failures", {"session": REF.path}, bearer(ALLOWED_TOKEN)) for _ in range(20)]
    first, *_, last = (answer.json()["result"] for answer in calls)
    assert not first.get("isError")
    assert last["isError"]
    assert "too many expensive calls, retry in" in last["content"][0]["text"]
