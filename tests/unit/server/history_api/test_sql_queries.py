"""SQL of visitors: one SELECT in a sandbox, with limits, and off by default."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from rayhistory.server.app import create_app
from rayhistory.settings import resolve
from support.recorded_sample import REF, settings_for, store_indexed_sample

PATH = f"{REF.url}api/history/sql"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sql")
    store_indexed_sample(settings_for(directory))
    return directory


def client_for(directory: Path, **flags: str) -> TestClient:
    given = {
        "setting_local_storage_dir": str(directory / "store"), "setting_cache_dir": str(directory / "cache"), **flags
    }  # fmt: skip
    return TestClient(create_app(resolve("historyserver", given, {})[0]))


@pytest.fixture(scope="module")
def client(directory: Path) -> Iterator[TestClient]:
    with client_for(directory, setting_sql="true", setting_sql_timeout="3s", setting_sql_memory="128Mi") as client:
        yield client


def error_of(response: httpx2.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert error["status"] == response.status_code
    return error


def test_query_returns_rows(client: TestClient) -> None:
    body = client.post(PATH, json={"query": "select state, count(*) as n from tasks group by all order by n"}).json()
    assert body["columns"] == ["state", "n"]
    assert body["complete"]
    counted = client.get(f"{REF.url}api/history/rows/tasks", params={"count": 1}).json()["total"]
    assert sum(row["n"] for row in body["rows"]) == counted


def test_more_rows_than_the_limit_are_reported(client: TestClient) -> None:
    body = client.post(PATH, json={"query": "select * from range(100)", "limit": 7}).json()
    assert (len(body["rows"]), body["complete"]) == (7, False)


def test_repeated_column_names_are_numbered(client: TestClient) -> None:
    assert client.post(PATH, json={"query": "select 1 as a, 2 as a"}).json()["rows"] == [{"a": 1, "a_1": 2}]


def test_values_of_any_type_are_json(client: TestClient) -> None:
    numbers = "2::hugeint ** 100 as big, 'nan'::double as nan, 1.5::decimal as d"
    query = f"select {numbers}, now() as t, [1, 2] as l, {{'a': 1}} as s -- a comment"
    response = client.post(PATH, json={"query": query})
    assert response.status_code == 200, response.text
    assert response.json()["rows"][0]["l"] == [1, 2]


@pytest.mark.parametrize(
    "query",
    [
        "delete from tasks", "drop table tasks", "create table x as select 1", "select 1; select 2", "", "not sql",
        "copy tasks to '/tmp/x'", "attach '/tmp/x'", "install httpfs", "load httpfs", "set threads = 1",
        "select * from read_csv('/etc/passwd')", "select * from '/etc/passwd'", "select * from read_text('/etc/hosts')",
        "select * from glob('/*')", "select * from duckdb_settings()", "select * from tasks where colour = 1",
        "select * from no_such_table", "select getenv('PATH')", "explain select 1", "call pragma_version()",
    ],
)  # fmt: skip
def test_anything_but_a_harmless_select_is_refused(client: TestClient, query: str) -> None:
    assert error_of(client.post(PATH, json={"query": query}))["status"] == 400


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("select count(*) from range(1000000000) a, range(1000000000) b", "cancelled after 3 s"),
        ("select list(x) from (select repeat('x', 1000) || range as x from range(10000000))", "MiB|memory|cancelled"),
        ("select " + ", ".join(f"1 as c{n}" for n in range(1200)), "at most 1,000"),
    ],
    ids=["never ends", "memory", "columns"],
)
def test_limits_end_a_query_and_the_server_goes_on(client: TestClient, query: str, reason: str) -> None:
    response = client.post(PATH, json={"query": query})
    assert response.status_code == 400
    assert re.search(reason, error_of(response)["message"])
    assert client.post(PATH, json={"query": "select 1 as one"}).json()["rows"] == [{"one": 1}]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"query": 1}', b'{"q": "1"}', b'{"query": "select 1", "limit": 0}', b"\xff"]
)
def test_invalid_bodies_are_refused(client: TestClient, body: bytes) -> None:
    response = client.post(PATH, content=body, headers={"content-type": "application/json"})
    assert error_of(response)["code"] == "invalid_request"


def test_long_body_is_refused(client: TestClient) -> None:
    response = client.post(PATH, json={"query": "select '" + "x" * 100_000 + "'"})
    assert "64 KiB" in error_of(response)["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json", "origin": "https://evil.example"},
        {"content-type": "application/json", "user-agent": "Mozilla/5.0"},
    ],
)
def test_browsers_and_forms_cannot_send_queries(client: TestClient, headers: dict[str, str]) -> None:
    assert client.post(PATH, content=b'{"query": "select 1"}', headers=headers).status_code in (403, 405)


def test_get_is_refused(client: TestClient) -> None:
    assert client.get(PATH).status_code == 405


def test_sql_is_off_by_default(directory: Path) -> None:
    with client_for(directory) as client:
        assert error_of(client.post(PATH, json={"query": "select 1"}))["code"] == "sql_disabled"


def test_queries_are_audited(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rayhistory.audit"):
        client.post(PATH, json={"query": "select 42"})
    assert [record.query for record in caplog.records if record.message == "visitor ran an SQL query"] == ["select 42"]  # type: ignore[attr-defined]
