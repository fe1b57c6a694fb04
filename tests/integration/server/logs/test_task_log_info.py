"""Logs by task for versions of Ray that export the place of a task's output not at all, or only its end."""

from collections.abc import Iterator

import httpx
import pytest

from recorded.compare import compare
from recorded.dashboard_requests import full_list
from recorded.recorder import Recording
from support.older_ray import copy_as_exported_by, export_ends_only, export_no_log_info
from support.reported_tasks import lacks_last_report
from support.server_process import running_server

EXPORTS = {"2.53.0": export_no_log_info, "2.57.0": export_ends_only}


@pytest.fixture(scope="module", params=EXPORTS.items(), ids=lambda each: each[1].__name__)
def older(
    request: pytest.FixtureRequest, recorded: Recording, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    version, edit = request.param
    work = tmp_path_factory.mktemp("older")
    copy_as_exported_by(version, edit, recorded, work / "store")
    with (
        running_server(work / "store", work / "server") as address,
        httpx.Client(base_url=address + recorded.ref.url.rstrip("/"), timeout=60, trust_env=False) as http,
    ):
        assert http.get("/api/version").json()["ray_version"] == version
        yield http


def test_task_log_info_equals_that_of_the_live_cluster(older: httpx.Client, recorded: Recording) -> None:
    """A worker that is killed does not report its last second: the live cluster lacks that, and the history has it."""
    workers = {worker["worker_id"]: worker for worker in _tasks(recorded.live(full_list("workers")))}
    live = {_key(task): task["task_log_info"] for task in _tasks(recorded.live(full_list("tasks")))}
    assert sum(info is not None for info in live.values()) > 5
    for task in _tasks(older.get(full_list("tasks")).json()):
        info, reported = task["task_log_info"] or {}, live[_key(task)] or {}
        if lacks_last_report(task, workers):
            assert reported.items() <= info.items(), task
        else:
            assert _without_ends(info, reported) == reported, task


def test_logs_by_task_equal_those_of_the_live_cluster(older: httpx.Client, recorded: Recording) -> None:
    requests = [live for name, live in recorded.responses.items() if "/api/v0/logs/file?task_id" in name]
    assert any(live.status == 200 and live.text for live in requests)
    for live in requests:
        dead = older.get(live.request.path)
        comparison = compare(live.request, (live.status, live.text), (dead.status_code, dead.text))
        if live.status == 200:
            assert not comparison.differences


def test_inferred_fields_are_named_and_tables_have_only_exported_ones(older: httpx.Client, recorded: Recording) -> None:
    live = {_key(task): task["task_log_info"] for task in _tasks(recorded.live(full_list("tasks")))}
    where = ["stdout_file=", "type=NORMAL_TASK"]
    rows = older.get("/api/history/rows/tasks", params={"where": where}).json()["rows"]
    row = next(row for row in rows if (live[_key(row)] or {}).get("stdout_end"))
    params = {"task_id": row["task_id"], "attempt": row["attempt_number"]}
    found = older.get("/api/history/task_log_info", params=params).json()
    assert found["task_log_info"] == live[_key(row)]
    assert {"stdout_file", "stderr_file", "stdout_start", "stderr_start"} <= set(found["inferred"])
    assert all(row[name] is None for name in found["inferred"])


@pytest.mark.parametrize(("query", "status"), [("", 400), ("task_id=ab&attempt=-1", 400), ("task_id=ab", 404)])
def test_task_log_info_of_no_task_is_refused(query: str, status: int, older: httpx.Client) -> None:
    assert older.get(f"/api/history/task_log_info?{query}").status_code == status


def _tasks(body: dict) -> list[dict]:  # type: ignore[type-arg]
    return body["data"]["result"]["result"]  # type: ignore[no-any-return]


def _without_ends(info: dict, reported: dict) -> dict:  # type: ignore[type-arg]
    """Leave out the ends of a task that was still running when the live cluster was asked."""
    running = reported and "stdout_end" not in reported
    return {name: value for name, value in info.items() if not (running and name.endswith("_end"))}


def _key(task: dict) -> tuple[str, int]:  # type: ignore[type-arg]
    return task["task_id"], task["attempt_number"]
