"""The task timeline in the Chrome trace format."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.server.app import create_app
from rayhistory.server.ray_api import chrome_trace as timeline
from rayhistory.server.ray_api.state_rows import by_attempt
from support.many_tasks import SMALL_JOB, store_many_tasks
from support.recorded_sample import REF, live, serving, settings_for

Row = dict[str, Any]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("timeline")) as client:
        yield client


def events(client: TestClient, query: str = "") -> list[Row]:
    response = client.get(f"api/v0/tasks/timeline{query}")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("application/json")
    found: list[Row] = response.json()
    return found


def worker_of(event: Row, all_events: list[Row]) -> str:
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in all_events if e["name"] == "thread_name"}
    name: str = names[event["pid"], event["tid"]]
    return name


def span(event: Row, all_events: list[Row]) -> Row:
    numbers = ("pid", "tid", "ts", "dur")
    return {k: v for k, v in event.items() if k not in numbers} | {"worker": worker_of(event, all_events)}


def test_spans_match_the_live_dashboard(client: TestClient) -> None:
    """All spans of the live response, on the same workers, to the microsecond. Later spans are extra."""
    ours, theirs = events(client), live("v0_tasks_timeline")
    for expected in (event for event in theirs if event["ph"] == "X"):
        [same] = [
            event for event in ours
            if event["ph"] == "X" and event["cat"] == expected["cat"]
            and event["args"]["task_id"] == expected["args"]["task_id"]
        ]  # fmt: skip
        assert span(same, ours) == span(expected, theirs)
        assert (same["ts"], same["dur"]) == (expected["ts"], expected["dur"])


def test_trace_names_nodes_and_workers(client: TestClient) -> None:
    found = events(client)
    assert {"name": "process_name", "args": {"name": "Node 192.0.2.2"}, "pid": 0, "tid": None, "ph": "M"} in found
    assert all(event["ph"] == "M" for event in found[-2:])


def test_driver_spans_are_excluded_as_in_ray(client: TestClient) -> None:
    assert not [event for event in events(client) if event.get("cat") == "submit_task"]


def test_timeline_can_be_limited_to_one_job(client: TestClient) -> None:
    found = events(client, "?job_id=03000000")
    assert {event["args"]["job_id"] for event in found if event["ph"] == "X"} == {"03000000"}


def test_job_without_spans_gets_an_empty_array(client: TestClient) -> None:
    assert client.get("api/v0/tasks/timeline?job_id=99000000").text == "[]"


def test_timeline_can_be_downloaded(client: TestClient) -> None:
    response = client.get("api/v0/tasks/timeline?download=1&job_id=01000000")
    assert response.headers["content-disposition"].startswith('attachment; filename="timeline-01000000-')


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3])
def test_batch_size_does_not_change_the_timeline(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    whole = events(client)
    monkeypatch.setattr("rayhistory.index.query.open_index._BATCH_ROWS", size)
    assert events(client) == whole


@pytest.mark.slow
def test_timeline_of_a_small_job_reads_no_other_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks are scattered among the tasks of a large job."""
    store_many_tasks(tmp_path, 3_000, small_job=30)
    read: list[Row] = []

    def record(spans: list[Row]) -> Any:
        read.extend(spans)
        return by_attempt(spans)

    monkeypatch.setattr(timeline, "by_attempt", record)
    with TestClient(create_app(settings_for(tmp_path)), base_url=f"http://testserver{REF.url}") as client:
        found = [event for event in events(client, f"?job_id={SMALL_JOB}") if event["ph"] == "X"]
        assert len({event["args"]["task_id"] for event in found}) == 30
        assert len(read) == len(found)
        assert len(events(client)) > 99 * len(found)


def test_invalid_job_id_is_rejected(client: TestClient) -> None:
    response = client.get("api/v0/tasks/timeline", params={"download": "1", "job_id": 'x"\r\nSet-Cookie: a=b'})
    assert response.status_code == 400
