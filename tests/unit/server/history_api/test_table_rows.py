"""Our own way to the tables: any columns, filters and order, page by page, with mistakes told in our own shape."""

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.index import ask
from rayhistory.index.query import Filter
from rayhistory.server.routes import rows
from recorded_sample import serving


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("rows")) as client:
        yield client


def ask_for(client: TestClient, table: str, **parameters: Any) -> dict[str, Any]:
    answer = client.get(f"api/history/rows/{table}", params=parameters)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("state=FAILED", Filter("state", "=", "FAILED")),
        ("state != FAILED", Filter("state", "!=", "FAILED")),
        ("start_time_ms>=17", Filter("start_time_ms", ">=", "17")),
        ("start_time_ms<17", Filter("start_time_ms", "<", "17")),
        ("name~a=b", Filter("name", "contains", "a=b")),
        ("name^=stage", Filter("name", "prefix", "stage")),
        ("error_type=", Filter("error_type", "=", None)),
        ("error_type!=", Filter("error_type", "!=", None)),
    ],
)
def test_conditions_are_read_from_text(text: str, expected: Filter) -> None:
    assert ask.condition(text) == expected


def test_rows_have_the_columns_that_were_asked_for_in_the_order_that_was_asked_for(client: TestClient) -> None:
    answer = ask_for(client, "tasks", columns="name,state", where=["state=failed", "name!=boom"], sort="-name", count=1)
    assert {tuple(row) for row in answer["rows"]} == {("name", "state")}
    names = [row["name"] for row in answer["rows"]]
    assert names == sorted(names, reverse=True)
    assert "boom" not in names
    assert {row["state"] for row in answer["rows"]} == {"FAILED"}
    assert (answer["next"], answer["total"]) == (None, len(names))


@pytest.mark.parametrize("sort", ["", "-start_time_ms", "state,-name"])
def test_pages_follow_each_other_to_the_end(client: TestClient, sort: str) -> None:
    everything = ask_for(client, "tasks", sort=sort, limit=1000)
    assert "total" not in everything
    found, more = [], {"cursor": ""}
    while more["cursor"] is not None:
        page = ask_for(client, "tasks", sort=sort, limit=7, count=1, **more)
        assert page["total"] == len(everything["rows"])
        found += page["rows"]
        more = {"cursor": page["next"]}
    assert found == everything["rows"]


@pytest.mark.parametrize(("size", "limit"), [(1, 9_997), (3_000, 9_998), (10**9, 9_999)])
def test_a_page_of_large_rows_ends_early_and_is_followed_by_others(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, size: int, limit: int
) -> None:
    everything = ask_for(client, "snapshots", limit=10_000)["rows"]
    monkeypatch.setattr(rows, "_LARGEST_PAGE", size)
    pages, more = [], {"cursor": ""}
    while more["cursor"] is not None:
        page = ask_for(client, "snapshots", limit=limit, **more)
        assert sum(len(row["body"]) for row in page["rows"][:-1]) <= size
        pages.append(page["rows"])
        more = {"cursor": page["next"]}
    assert [row for page in pages for row in page] == everything
    assert (len(pages) > 2) == (size < 10**9)


def test_every_table_that_is_served_can_be_asked_for(client: TestClient) -> None:
    for table in ("tasks", "actors", "jobs", "nodes", "workers", "placement_groups", "profile_events", "gaps",
                  "actor_transitions", "cluster_events", "platform_events", "snapshots"):  # fmt: skip
        first = ask_for(client, table, limit=1, count=1)
        assert len(first["rows"]) == min(1, first["total"])
        if first["next"]:
            assert ask_for(client, table, limit=1, cursor=first["next"])["rows"] != first["rows"]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("tasks?where=colour=red", "table 'tasks' has no column 'colour': there are task_id, attempt_number, name"),
        ("tasks?columns=colour", "table 'tasks' has no column 'colour': there are task_id, attempt_number, name"),
        ("nodes?sort=-colour", "table 'nodes' has no column 'colour': there are node_id, node_ip"),
        ("tasks?where=start_time_ms>soon", "start_time_ms is a number, not 'soon'"),
        ("tasks?where=name", "not a condition: 'name'"),
        ("tasks?limit=0", "limit is from 1 to 10000, not 0"),
        ("tasks?limit=x", "limit is a number, not 'x'"),
        ("tasks?cursor=x", "the cursor cannot be read"),
        ("tasks?cursor=W1tdLFtdXQ", "the cursor is that of another table or sort"),
        ("tasks?cursor=W1sidGFza19pZCIsImF0dGVtcHRfbnVtYmVyIl0sWyJ4Il1d", "a place in this order has 2 values, not 1"),
        ("tasks?order=name", "unknown parameters order: there are columns, count, cursor, limit, sort, where"),
        ("merged.workers", "no table 'merged.workers': there are actor_transitions, actors"),
        ("task_list", "no table 'task_list'"),
    ],
)
def test_a_mistake_is_told_in_our_own_shape(client: TestClient, address: str, message: str) -> None:
    answer = client.get(f"api/history/rows/{address}")
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["status"] == 400
    assert error["message"].startswith(message)


@pytest.mark.parametrize("parameter", ["sort={}", "sort=state,-{}", "where={}~bar", "where={}^=x&count=1", "where={}="])
@pytest.mark.parametrize(("table", "column"), [("jobs", "runtime_env"), ("tasks", "runtime_env"),
                         ("actors", "runtime_env"), ("snapshots", "body"), ("platform_events", "body")])  # fmt: skip
def test_browsers_cannot_find_out_what_is_masked(client: TestClient, table: str, column: str, parameter: str) -> None:
    """Neither from the cursor, which holds the last row's values, nor from which rows there are."""
    known = "state" if table in ("tasks", "actors") else "status" if table == "jobs" else "ns"
    asked = parameter.format(column).replace("state", known)
    address = f"api/history/rows/{table}?limit=1&columns={known}&{asked}"
    assert client.get(address).status_code == 200
    answer = client.get(address, headers={"User-Agent": "Mozilla/5.0"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(f"{column} may have secrets, which browsers do not see")


def test_browsers_do_not_see_the_values_of_environment_variables(client: TestClient) -> None:
    for table in ("tasks", "actors", "jobs", "snapshots"):
        address = f"api/history/rows/{table}?limit=1000"
        assert '"bar' in client.get(address).text.replace("\\", "")
        shown = client.get(address, headers={"User-Agent": "Mozilla/5.0"}).text
        assert '"bar' not in shown.replace("\\", "")
        assert "<redacted>" in shown
