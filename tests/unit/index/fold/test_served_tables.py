"""The served tables, and the gaps that they show."""

from pathlib import Path
from typing import Any

from rayhistory.gaps import GapCode, is_complete
from rayhistory.index.manifest import Manifest
from support.folding import END, RECORDED, as_lines, fold_session, put, rows
from support.skewed_events import alive_actor, at, encoded, node_event, placed_task, task_event

DRIVER = "ff" * 20 + "01000000"


def folded(directory: Path, *events: dict[str, Any], closed: bool = True) -> Manifest:
    put(directory, 0, as_lines(list(events)))
    return fold_session(directory, END if closed else None)


def gaps(directory: Path, manifest: Manifest) -> dict[str, int]:
    return dict(rows(directory, manifest, "SELECT kind || ' ' || detail, sum(count)::BIGINT FROM gaps GROUP BY 1"))


def test_session_with_empty_tables_is_not_complete(tmp_path: Path) -> None:
    """An import of a directory without export files has logs and nothing else."""
    event = {"eventType": "DASHBOARD_SNAPSHOT", "timestamp": at(0), "dashboardSnapshot": {"uri": "/x", "body": {}}}
    found = gaps(tmp_path, folded(tmp_path, event))
    assert {f"{GapCode.TABLE_EMPTY} {table}" for table in ("nodes", "jobs", "tasks", "actors")} <= found.keys()
    assert not is_complete([GapCode.TABLE_EMPTY])


def test_cluster_without_a_job_is_complete(tmp_path: Path) -> None:
    assert not [kind for kind in gaps(tmp_path, folded(tmp_path, node_event("ALIVE", 0))) if "table" in kind]


def test_running_session_may_have_empty_tables(tmp_path: Path) -> None:
    assert not gaps(tmp_path, folded(tmp_path, alive_actor(0), closed=False))


def test_recorded_session_has_no_empty_tables(tmp_path: Path) -> None:
    assert not [kind for kind in gaps(tmp_path, folded(tmp_path, *RECORDED)) if GapCode.TABLE_EMPTY in kind]


def test_tasks_whose_worker_died_before_it_sent_its_events_are_a_gap(tmp_path: Path) -> None:
    """The owner reports their end, and nothing shows when and where they ran."""
    manifest = folded(tmp_path, placed_task(0, 0), task_event(5, "FINISHED"))
    assert gaps(tmp_path, manifest)[f"{GapCode.TASK_WITHOUT_EXECUTION} "] == 1
    assert not is_complete([GapCode.TASK_WITHOUT_EXECUTION])


def test_tasks_that_never_ran_are_no_gap(tmp_path: Path) -> None:
    """They failed before they were submitted, or while they waited in the queue of their actor."""
    events = [task_event(0, "PENDING_ARGS_AVAIL FAILED"), task_event(2, "PENDING_ACTOR_TASK_ARGS_FETCH")]
    assert f"{GapCode.TASK_WITHOUT_EXECUTION} " not in gaps(tmp_path, folded(tmp_path, *events))


def test_driver_without_a_reported_end_is_not_a_failed_task(tmp_path: Path) -> None:
    """Its job has the result."""
    definition = {
        "eventType": "TASK_DEFINITION_EVENT",
        "timestamp": at(0),
        "taskDefinitionEvent": {"taskId": encoded(DRIVER), "taskType": "DRIVER_TASK"},
    }
    manifest = folded(tmp_path, definition, task_event(0, "RUNNING", taskId=encoded(DRIVER)))
    found = rows(tmp_path, manifest, "SELECT task_id, state, error_message, closed_by_history FROM tasks")
    assert found == [(DRIVER, "FINISHED", None, True)]


def test_memory_of_a_dead_worker_is_kept(tmp_path: Path) -> None:
    worker = "ab" * 28
    death = {"exitType": "NODE_OUT_OF_MEMORY", "exitDetail": "killed", "memoryUsedBytes": "5368709120"}
    event = {
        "eventType": "WORKER_LIFECYCLE_EVENT",
        "timestamp": at(1),
        "workerLifecycleEvent": {
            "workerId": encoded(worker),
            "stateTransitions": [{"state": "DEAD", "timestamp": at(1), "deathInfo": death}],
        },
    }
    manifest = folded(tmp_path, event)
    assert rows(tmp_path, manifest, "SELECT worker_id, memory_used_bytes FROM workers") == [(worker, 5 << 30)]
