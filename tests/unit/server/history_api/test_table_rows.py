"""Rows of tables through the history API: columns, filters, order, pages and errors."""

import io
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars
import pytest
from starlette.testclient import TestClient

from rayhistory.server.history_api import table_rows
from support.recorded_sample import serving

_INVALID = ("cursor=x", "limit=0", "limit=x", "columns=nothing", "where=nothing", "sort=nothing")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("rows")) as client:
        yield client


def get_rows(client: TestClient, table: str, **parameters: Any) -> dict[str, Any]:
    response = client.get(f"api/history/rows/{table}", params=parameters)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def test_alternatives_in_a_condition_match_either(client: TestClient) -> None:
    names = {row["name"] for row in get_rows(client, "tasks", limit=1000)["rows"]}
    first, second = sorted(names - {None})[:2]
    where = f"state != NONE and (name = '{first}' or name = \"{second}\")"
    assert {row["name"] for row in get_rows(client, "tasks", where=where)["rows"]} == {first, second}


def test_rows_have_the_requested_columns_and_order(client: TestClient) -> None:
    response = get_rows(
        client, "tasks", columns="name,state", where=["state=failed", "name!=boom"], sort="-name", count=1
    )
    assert {tuple(row) for row in response["rows"]} == {("name", "state")}
    names = [row["name"] for row in response["rows"]]
    assert names == sorted(names, reverse=True)
    assert "boom" not in names
    assert {row["state"] for row in response["rows"]} == {"FAILED"}
    assert (response["next"], response["total"]) == (None, len(names))


@pytest.mark.parametrize("sort", ["", "-start_time_ms", "state,-name"])
def test_cursor_reaches_all_pages(client: TestClient, sort: str) -> None:
    everything = get_rows(client, "tasks", sort=sort, limit=1000)
    assert "total" not in everything
    rows, more = [], {"cursor": ""}
    while more["cursor"] is not None:
        page = get_rows(client, "tasks", sort=sort, limit=7, count=1, **more)
        assert page["total"] == len(everything["rows"])
        rows += page["rows"]
        more = {"cursor": page["next"]}
    assert rows == everything["rows"]


@pytest.mark.parametrize(("size", "limit"), [(1, 9_997), (3_000, 9_998), (10**9, 9_999)])
def test_page_of_large_rows_ends_early(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, size: int, limit: int
) -> None:
    everything = get_rows(client, "snapshots", limit=10_000)["rows"]
    monkeypatch.setattr(table_rows, "_MAX_PAGE_BYTES", size)
    pages, more = [], {"cursor": ""}
    while more["cursor"] is not None:
        page = get_rows(client, "snapshots", limit=limit, **more)
        assert sum(len(row["body"]) for row in page["rows"][:-1]) <= size
        pages.append(page["rows"])
        more = {"cursor": page["next"]}
    assert [row for page in pages for row in page] == everything
    assert (len(pages) > 2) == (size < 10**9)


def test_every_served_table_can_be_requested(client: TestClient) -> None:
    for table in ("tasks", "actors", "jobs", "nodes", "workers", "placement_groups", "profile_events", "gaps",
                  "actor_transitions", "cluster_events", "platform_events", "snapshots"):  # fmt: skip
        first = get_rows(client, table, limit=1, count=1)
        assert len(first["rows"]) == min(1, first["total"])
        if first["next"]:
            assert get_rows(client, table, limit=1, cursor=first["next"])["rows"] != first["rows"]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("tasks?where=colour=red", "table 'tasks' has no column 'colour': use one of task_id, attempt_number, name"),
        ("tasks?columns=colour", "table 'tasks' has no column 'colour': use one of task_id, attempt_number, name"),
        ("nodes?sort=-colour", "table 'nodes' has no column 'colour': use one of node_id, node_ip"),
        ("tasks?where=start_time_ms>soon", "start_time_ms is a number, not 'soon'"),
        ("tasks?where=name", "invalid filter 'name'"),
        ("tasks?limit=0", "limit=0: use 1 to 10000"),
        ("tasks?limit=x", "limit=x: use a number"),
        ("tasks?cursor=x", "invalid cursor"),
        ("tasks?cursor=W1tdLFtdXQ", "cursor belongs to another table or sort order"),
        (
            "tasks?cursor=W1sidGFza19pZCIsImF0dGVtcHRfbnVtYmVyIl0sWyJ4Il1d",
            "cursor has 1 values, but this sort order needs 2",
        ),
        ("tasks?order=name", "unknown parameters order: use columns, count, cursor, limit, sort, where"),
        ("merged.workers", "unknown table 'merged.workers': use one of actor_transitions, actors"),
        ("task_list", "unknown table 'task_list'"),
    ],
)
def test_invalid_request_gets_an_api_error(client: TestClient, address: str, message: str) -> None:
    response = client.get(f"api/history/rows/{address}")
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["status"] == 400
    assert error["message"].startswith(message)


@pytest.mark.parametrize("parameter", ["sort={}", "sort=state,-{}", "where={}~bar", "where={}^=x&count=1", "where={}="])
@pytest.mark.parametrize(("table", "column"), [("jobs", "runtime_env"), ("tasks", "runtime_env"),
                         ("actors", "runtime_env"), ("snapshots", "body"), ("platform_events", "body")])  # fmt: skip
def test_browsers_cannot_sort_or_filter_by_masked_columns(
    client: TestClient, table: str, column: str, parameter: str
) -> None:
    """The cursor, which holds values of the last row, and the selected rows would reveal the values."""
    visible = "state" if table in ("tasks", "actors") else "status" if table == "jobs" else "ns"
    requested = parameter.format(column).replace("state", visible)
    address = f"api/history/rows/{table}?limit=1&columns={visible}&{requested}"
    assert client.get(address).status_code == 200
    response = client.get(address, headers={"User-Agent": "Mozilla/5.0"})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(f"{column} may contain secrets and is masked in browsers")


def test_environment_variables_are_masked_for_browsers(client: TestClient) -> None:
    for table in ("tasks", "actors", "jobs", "snapshots"):
        address = f"api/history/rows/{table}?limit=1000"
        assert '"bar' in client.get(address).text.replace("\\", "")
        shown = client.get(address, headers={"User-Agent": "Mozilla/5.0"}).text
        assert '"bar' not in shown.replace("\\", "")
        assert "<redacted>" in shown


def test_parquet_file_has_the_rows_of_all_pages(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    assert _parquet_rows(client, "tasks.parquet", tmp_path) == _sorted(get_rows(client, "tasks", limit=1000)["rows"])
    selected = {"columns": "name,state", "where": "state=FAILED", "sort": "name", "limit": "3"}
    assert _parquet_rows(client, "tasks.parquet", tmp_path, **selected) == get_rows(client, "tasks", **selected)["rows"]
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize("invalid", ["nothing.parquet", *(f"tasks.parquet?{each}" for each in _INVALID)])
def test_invalid_request_for_a_parquet_file_gets_an_api_error(client: TestClient, invalid: str) -> None:
    response = client.get(f"api/history/rows/{invalid}")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request")


def test_browsers_get_parquet_files_without_masked_columns(client: TestClient) -> None:
    browser = {"User-Agent": "Mozilla/5.0"}
    for query in ("", "?columns=name,runtime_env", "?columns=name&sort=runtime_env"):
        assert client.get(f"api/history/rows/tasks.parquet{query}", headers=browser).status_code == 400, query
    assert client.get("api/history/rows/tasks.parquet?columns=name", headers=browser).status_code == 200


def test_archive_has_the_rows_of_all_pages(client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    response = client.get("api/history/rows/tasks.zip")
    assert response.headers["content-type"] == "application/zip", response.text
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        hidden = archive.comment.decode().split()
        files = [polars.read_parquet(archive.read(name)) for name in archive.namelist()]
    rows = [row for file in files for row in file.drop(hidden).to_dicts()]
    assert _sorted(rows) == _sorted(get_rows(client, "tasks", limit=1000)["rows"])
    assert not list(tmp_path.iterdir())


def test_archive_is_refused_to_browsers_and_for_selected_rows(client: TestClient) -> None:
    browser = {"User-Agent": "Mozilla/5.0"}
    assert client.get("api/history/rows/tasks.zip", headers=browser).json()["error"]["code"] == "access_denied"
    for invalid in ("nothing.zip", "merged.keys.zip", "tasks.zip?columns=name", "tasks.zip?superseded=x"):
        assert client.get(f"api/history/rows/{invalid}").json()["error"]["code"] == "invalid_request", invalid


def _parquet_rows(client: TestClient, address: str, folder: Path, **parameters: Any) -> list[dict[str, Any]]:
    response = client.get(f"api/history/rows/{address}", params=parameters)
    assert response.headers["content-type"] == "application/vnd.apache.parquet", response.text
    file = folder / "rows.parquet"
    file.write_bytes(response.content)
    rows = polars.read_parquet(file).to_dicts()
    return rows if "sort" in parameters else _sorted(rows)


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["task_id"], row["attempt_number"]))
