"""Access over MCP: tools see what the visitor's own requests would see, and cookies do not count."""

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from rayhistory.access.visitor import COOKIE
from rayhistory.runs.session_summary import StoredSummary, SummaryVerdict
from rayhistory.storage.local import LocalStore
from support.generated_runs import announce, generated
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
    tokens = (("ada", ALLOWED_TOKEN, "default"), ("bob", HIDDEN_TOKEN, HIDDEN.namespace))
    access_file = write_access_file(directory, "".join(f"token {' '.join(each)}\n" for each in tokens))
    asyncio.run(announce(LocalStore(directory / "store"), [HIDDEN_RUN]))
    with serve_two_namespaces(directory, auth="token", access_file=access_file, rate_limit=0, sql=True) as client:
        yield client


def hidden_run() -> StoredSummary:
    """Return a failed run of the hidden session."""
    run = generated(status="FAILED", fingerprint="feed" * 4)
    verdict = SummaryVerdict(code="user_exception", headline=HEADLINE, fingerprint="feed" * 4)
    names = {"namespace": HIDDEN.namespace, "cluster": HIDDEN.cluster, "session": HIDDEN.session, "owner_name": JOB}
    return msgspec.structs.replace(run, summary=msgspec.structs.replace(run.summary, verdict=verdict, **names))


HIDDEN_TOKEN = "token-of-bob-with-rights-to-x"
HEADLINE, JOB = "the vault's combination is wrong", "nightly-of-x"
HIDDEN_RUN = hidden_run()
HIDDEN_TEXTS = (HEADLINE, JOB, "feedfeed", f"/{HIDDEN.cluster}/")


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


def listed_tools(client: TestClient) -> dict[str, dict[str, Any]]:
    """Return the schema of each tool's arguments, as clients see it."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    tools = client.post("/mcp", json=body, headers=bearer(ALLOWED_TOKEN)).json()["result"]["tools"]
    assert len(tools) > 10
    return {tool["name"]: tool["inputSchema"] for tool in tools}


def texts_of(schema: dict[str, Any], *, required: bool) -> list[str]:
    """Return the names of arguments that take any text; `required` for those alone that a call needs."""
    names = schema.get("required", []) if required else schema["properties"]
    properties = schema["properties"]
    return [name for name in names if properties[name]["type"] == "string" and "pattern" not in properties[name]]


def test_every_tool_refuses_a_session_of_another_namespace(client: TestClient) -> None:
    """Also a tool that is added later: whatever takes a session is called with one."""
    tools = {name: schema for name, schema in listed_tools(client).items() if "session" in schema["properties"]}
    assert len(tools) > 8
    for name, schema in tools.items():
        needed = dict.fromkeys(texts_of(schema, required=True), "select 1")
        for hidden in (HIDDEN.path, f"{HIDDEN.namespace}/{HIDDEN.cluster}", f"{HIDDEN.namespace}/~rayjob/{JOB}"):
            result = call(client, name, {**needed, "session": hidden}, bearer(ALLOWED_TOKEN)).json()["result"]
            assert result["isError"], name
            assert "Forbidden" in result["content"][0]["text"], name


def test_no_tool_tells_about_another_namespace_whatever_its_arguments_are(client: TestClient) -> None:
    for name, schema in listed_tools(client).items():
        needed = dict.fromkeys(texts_of(schema, required=True), "select 1")
        texts = texts_of(schema, required=False)
        choices = [dict.fromkeys(texts, HIDDEN.session), dict.fromkeys(texts, HIDDEN.namespace)]
        if "session" not in texts:
            choices += [{}, {"namespace": HIDDEN.namespace}]
        for given in choices:
            answer = call(client, name, needed | given, bearer(ALLOWED_TOKEN)).text
            assert not [text for text in HIDDEN_TEXTS if text in answer], (name, given)


def test_tools_without_a_session_tell_a_visitor_of_the_namespace_about_it(client: TestClient) -> None:
    """So that a tool that hides it from others does not hide it from everybody."""
    tools = {name: schema for name, schema in listed_tools(client).items() if "session" not in schema["properties"]}
    assert {"find_sessions", "job_trend"} <= tools.keys()
    for name, schema in tools.items():
        needed = dict.fromkeys(texts_of(schema, required=True), "select 1")
        answer = call(client, name, needed, bearer(HIDDEN_TOKEN)).text
        assert [text for text in HIDDEN_TEXTS if text in answer], name


def test_resources_are_the_sessions_that_a_visitor_may_open(client: TestClient) -> None:
    def ask(method: str, **params: str) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return client.post("/mcp", json=body, headers=bearer(ALLOWED_TOKEN)).json()

    uris = [resource["uri"] for resource in ask("resources/list")["result"]["resources"]]
    assert [uri for uri in uris if REF.path in uri]
    assert not [uri for uri in uris if HIDDEN.cluster in uri]
    hidden = next(uri for uri in uris if REF.path in uri).replace(REF.path, HIDDEN.path)
    assert "error" in ask("resources/read", uri=hidden)


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
