"""Which session and category an event belongs to."""

import json
from typing import Any

import pytest

from rayhistory.collector.routing import RoutingError, route

SESSION = "session_2026-11-15_19-18-08_055078_15551"
NODE = "106Tu7C7PSE7GNyJT1NxH/uvTicOjC1d3i8V8g=="
NODE_HEX = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"


def category(**fields: Any) -> str:
    return route(json.dumps({"sessionName": SESSION, **fields}).encode()).category


@pytest.mark.parametrize(
    "name",
    [
        "driverJobDefinitionEvent",
        "driverJobLifecycleEvent",
        "taskDefinitionEvent",
        "taskLifecycleEvent",
        "taskProfileEvents",
        "actorTaskDefinitionEvent",
        "actorDefinitionEvent",
    ],
)
def test_events_that_carry_a_job_are_filed_by_job_as_in_kuberay(name: str) -> None:
    """The job id becomes hex."""
    assert category(eventType="ANY", **{name: {"jobId": "AQAAAA=="}}) == "job_events/01000000"


def test_events_that_carry_none_are_the_nodes() -> None:
    """KubeRay files actor lifecycles and every newer type there."""
    assert category(eventType="ACTOR_LIFECYCLE_EVENT", actorLifecycleEvent={"actorId": "x"}) == "node_events"
    assert category(eventType="WORKER_DEFINITION_EVENT", workerDefinitionEvent={"jobId": "AQAAAA=="}) == "node_events"
    assert category(eventType="TASK_LIFECYCLE_EVENT", taskLifecycleEvent={"jobId": ""}) == "node_events"
    assert category() == "node_events"


def test_node_events_stay_the_nodes_whatever_they_carry() -> None:
    """The type is looked at before the nested objects."""
    assert category(eventType="NODE_LIFECYCLE_EVENT", taskDefinitionEvent={"jobId": "AQAAAA=="}) == "node_events"


def test_both_spellings_of_names_are_read() -> None:
    """Ray can be told to keep proto names."""
    event = {
        "session_name": SESSION,
        "event_type": "TASK_DEFINITION_EVENT",
        "source_type": "CORE_WORKER",
        "node_id": NODE,
        "task_definition_event": {"job_id": "AQAAAA=="},
    }
    assert route(json.dumps(event).encode()) == (SESSION, "job_events/01000000", NODE_HEX)


def test_names_of_ray_2_49_are_read() -> None:
    """Task lifecycles were called executions then."""
    assert category(taskExecutionEvent={"jobId": "AQAAAA=="}) == "job_events/01000000"


def test_only_a_worker_process_tells_its_node() -> None:
    """What GCS sends is about any node."""
    fields = {"sessionName": SESSION, "nodeId": NODE}
    assert route(json.dumps({**fields, "sourceType": "CORE_WORKER"}).encode()).node == NODE_HEX
    assert route(json.dumps({**fields, "sourceType": "GCS"}).encode()).node is None


@pytest.mark.parametrize("job", ["../../etc", "a/b", "\0", "!!!!", "%2e%2e"])
def test_a_job_id_never_becomes_a_path(job: str) -> None:
    """What is no id and no safe name goes to the node's events, or becomes hex."""
    found = category(taskDefinitionEvent={"jobId": job})
    assert found == "node_events" or found.removeprefix("job_events/").isalnum()


def test_wrong_types_are_tolerated() -> None:
    """Numbers for strings, strings for objects, null for anything."""
    assert category(eventType=7, taskDefinitionEvent={"jobId": 12}) == "job_events/12"
    assert category(eventType=None, taskDefinitionEvent="x", sourceType=[], nodeId={}) == "node_events"


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (b"3", "not an object"),
        (b"null", "not an object"),
        (b"[1]", "not an object"),
        (b"{}", "no session"),
        (b'{"sessionName": ""}', "no session"),
        (b'{"sessionName": 5}', "bad session"),
        (b'{"sessionName": "../../etc/passwd"}', "bad session"),
        (b'{"sessionName": "session_2026-11-15_19-18-08_055078_1/../x"}', "bad session"),
        (b'{"sessionName": "session_2026-11-15_19-18-08_055078_1\\u0000"}', "bad session"),
        (b'{"sessionName": "\xff"}', "not JSON"),
    ],
)
def test_what_has_no_usable_session_has_no_route(event: bytes, reason: str) -> None:
    """A session name from outside is checked before it names anything."""
    with pytest.raises(RoutingError, match=reason):
        route(event)
