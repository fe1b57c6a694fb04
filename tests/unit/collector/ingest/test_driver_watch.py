"""The collector notices drivers that do not export events."""

import base64
import json
from typing import Any

import pytest

from rayhistory.collector.ingest import driver_watch
from rayhistory.collector.ingest.driver_watch import DriverWatch
from rayhistory.collector.ingest.event_routing import route_batch
from rayhistory.collector.spool.block import Block

SESSION = "session_2026-11-15_19-18-08_055078_15551"
NODE = "d7" * 28
JOB = "02000000"
OTHER_TASK = "ab" * 20 + JOB
DRIVER_TASK = "f" * 40 + JOB


def b64(hex_id: str) -> str:
    return base64.b64encode(bytes.fromhex(hex_id)).decode()


def event(event_type: str, payload: str, **fields: Any) -> dict[str, Any]:
    return {"sessionName": SESSION, "eventType": event_type, payload: {"jobId": b64(JOB), **fields}}


REPORTED = event("DRIVER_JOB_DEFINITION_EVENT", "driverJobDefinitionEvent", driverNodeId=b64(NODE))
RUNS = event("TASK_LIFECYCLE_EVENT", "taskLifecycleEvent", taskId=b64(OTHER_TASK))
OWN_TASK = event("TASK_LIFECYCLE_EVENT", "taskLifecycleEvent", taskId=b64(DRIVER_TASK))
SUBMITS = event("TASK_DEFINITION_EVENT", "taskDefinitionEvent", taskId=b64(OTHER_TASK), parentTaskId=b64(DRIVER_TASK))
SUBMITTED_BY_A_TASK = event(
    "TASK_DEFINITION_EVENT", "taskDefinitionEvent", taskId=b64("cd" * 20 + JOB), parentTaskId=b64(OTHER_TASK)
)
ACTOR_OF_THE_DRIVER = event("ACTOR_DEFINITION_EVENT", "actorDefinitionEvent", parentId=b64(DRIVER_TASK))


def silent(*bodies: list[dict[str, Any]]) -> dict[str, str | None]:
    watch = DriverWatch()
    for body in bodies:
        for session, blocks in route_batch(json.dumps(body).encode()).blocks.items():
            watch.observe(session, blocks)
    return watch.silent(SESSION, min_seconds=0)


def test_driver_that_only_the_gcs_reports_is_silent() -> None:
    assert silent([REPORTED], [RUNS]) == {JOB: NODE}


@pytest.mark.parametrize("own", [OWN_TASK, SUBMITS], ids=["its own task", "a task that it submitted"])
def test_driver_that_reports_tasks_is_not_silent(own: dict[str, Any]) -> None:
    assert silent([REPORTED, own]) == {}
    assert silent([REPORTED], [own], [RUNS]) == {}
    assert silent([own], [REPORTED]) == {}


def test_definitions_that_others_report_do_not_count() -> None:
    """Workers export tasks that they submit, and the GCS exports the driver's actors, whatever the driver does."""
    assert silent([REPORTED, SUBMITTED_BY_A_TASK, ACTOR_OF_THE_DRIVER]) == {JOB: NODE}


def test_driver_is_given_time_before_it_counts_as_silent() -> None:
    watch = DriverWatch()
    watch.observe(SESSION, route_batch(json.dumps([REPORTED]).encode()).blocks[SESSION])
    assert watch.silent(SESSION) == {}


def test_tasks_of_a_driver_elsewhere_are_no_reason() -> None:
    """Only the head's collector gets the events of the GCS."""
    assert silent([RUNS]) == {}


def test_other_sessions_have_their_own_drivers() -> None:
    watch = DriverWatch()
    watch.observe("session_2026-11-16_00-00-00_000000_1", route_batch(json.dumps([REPORTED]).encode()).blocks[SESSION])
    assert watch.silent(SESSION, min_seconds=0) == {}


def test_number_of_watched_drivers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that invents jobs pushes out the oldest, and takes no memory."""
    monkeypatch.setattr(driver_watch, "_MAX_DRIVERS", 8)
    watch = DriverWatch()
    for number in range(20):
        watch.observe(SESSION, [Block(f"job_events/{number:08x}", 1, b'{"eventType":"DRIVER_JOB_DEFINITION_EVENT"}\n')])
    assert list(watch.silent(SESSION, min_seconds=0)) == [f"{number:08x}" for number in range(12, 20)]


def test_job_without_an_id_has_no_driver() -> None:
    watch = DriverWatch()
    watch.observe(SESSION, [Block("job_events/not hex", 1, b"DRIVER_JOB_DEFINITION_EVENT\n")])
    assert watch.silent(SESSION, min_seconds=0) == {}
