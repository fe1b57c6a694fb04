"""The served tables, and the gaps that they show."""

from pathlib import Path
from typing import Any

from rayhistory.gap_descriptions import is_complete
from rayhistory.gaps import GapCode
from rayhistory.index.manifest import Manifest
from support.folding import END, RECORDED, as_lines, fold_session, put, rows
from support.skewed_events import NODES, WORKERS, alive_actor, at, encoded, ms, node_event, placed_task, task_event

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


def worker_ended(seconds: float) -> dict[str, Any]:
    """The dashboard's list of workers, where the worker of a placed task has ended."""
    worker = {
        "worker_id": WORKERS[0], "node_id": NODES[0], "worker_type": "WORKER", "ip": "10.0.0.7", "pid": 7,
        "exit_type": "INTENDED_SYSTEM_EXIT", "end_time_ms": ms(seconds),
    }  # fmt: skip
    listed = {"total": 1, "num_after_truncation": 1, "num_filtered": 1, "result": [worker]}
    return {
        "eventType": "DASHBOARD_SNAPSHOT",
        "timestamp": at(60),
        "dashboardSnapshot": {
            "uri": "/api/v0/workers?detail=1&limit=10000",
            "body": {"result": True, "data": {"result": listed}},
        },
    }


def test_missing_report_of_a_worker_that_lived_on_is_a_loss(tmp_path: Path) -> None:
    """The owner reports the task's end, and nothing shows when and where it ran."""
    found = gaps(tmp_path, folded(tmp_path, placed_task(0, 0), task_event(5, "FINISHED"), worker_ended(8)))
    assert found[f"{GapCode.TASK_WITHOUT_EXECUTION} "] == 1
    assert f"{GapCode.TASK_EXECUTION_UNREPORTED} " not in found
    assert not is_complete([GapCode.TASK_WITHOUT_EXECUTION])


def test_missing_report_of_a_worker_that_ended_at_once_is_informational(tmp_path: Path) -> None:
    """Workers report every second: Ray itself did not know when and where the task ran."""
    found = gaps(tmp_path, folded(tmp_path, placed_task(0, 0), task_event(5, "FINISHED"), worker_ended(5.5)))
    assert found[f"{GapCode.TASK_EXECUTION_UNREPORTED} "] == 1
    assert f"{GapCode.TASK_WITHOUT_EXECUTION} " not in found
    assert is_complete([GapCode.TASK_EXECUTION_UNREPORTED])


def test_crashed_workers_of_the_recorded_session_are_no_loss(tmp_path: Path) -> None:
    """Five tasks of a worker, and five of an actor that restarted once; the live dashboard had no start of them."""
    found = gaps(tmp_path, folded(tmp_path, *RECORDED))
    assert found[f"{GapCode.TASK_EXECUTION_UNREPORTED} "] == 10
    assert f"{GapCode.TASK_WITHOUT_EXECUTION} " not in found


def test_tasks_that_never_ran_are_no_gap(tmp_path: Path) -> None:
    """They failed before they were submitted, or while they waited in the queue of their actor."""
    events = [task_event(0, "PENDING_ARGS_AVAIL FAILED"), task_event(2, "PENDING_ACTOR_TASK_ARGS_FETCH")]
    codes = {kind.split()[0] for kind in gaps(tmp_path, folded(tmp_path, *events))}
    assert not codes & {GapCode.TASK_WITHOUT_EXECUTION, GapCode.TASK_EXECUTION_UNREPORTED}


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
