"""Routing of events to their session and category."""

import json
from typing import Any, get_args

import msgspec
import pytest

from rayhistory.collector.ingest import event_routing
from rayhistory.collector.ingest.event_routing import RoutingError, route_batch, route_event
from rayhistory.events import event_types

SESSION = "session_2026-11-15_19-18-08_055078_15551"
NODE = "106Tu7C7PSE7GNyJT1NxH/uvTicOjC1d3i8V8g=="
NODE_HEX = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"


def category(**fields: Any) -> str:
    return route_event(json.dumps({"sessionName": SESSION, **fields}).encode()).category


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
def test_events_with_a_job_id_are_filed_by_job_as_in_kuberay(name: str) -> None:
    assert category(eventType="ANY", **{name: {"jobId": "AQAAAA=="}}) == "job_events/01000000"


def test_events_without_a_job_id_are_node_events() -> None:
    """KubeRay files actor lifecycles and all newer types there."""
    assert category(eventType="ACTOR_LIFECYCLE_EVENT", actorLifecycleEvent={"actorId": "x"}) == "node_events"
    assert category(eventType="WORKER_DEFINITION_EVENT", workerDefinitionEvent={"jobId": "AQAAAA=="}) == "node_events"
    assert category(eventType="TASK_LIFECYCLE_EVENT", taskLifecycleEvent={"jobId": ""}) == "node_events"
    assert category() == "node_events"


PAYLOADS_WITH_JOB_ID = [
    field
    for field in msgspec.structs.fields(event_types.Event)
    if any("job_id" in getattr(kind, "__struct_fields__", ()) for kind in get_args(field.type))
]


@pytest.mark.parametrize("spelling", ["camel", "snake"])
@pytest.mark.parametrize("field", PAYLOADS_WITH_JOB_ID, ids=lambda field: field.name)
def test_fast_path_covers_every_payload_with_a_job_id(
    field: msgspec.structs.FieldInfo, spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new event type with a job id must not end up among the node events unnoticed."""

    def fail(event: bytes) -> None:
        raise AssertionError(f"slow path used for {event!r}")

    monkeypatch.setattr(event_routing, "route_event", fail)
    if spelling == "camel":
        event = {"sessionName": SESSION, "eventType": "ANY", field.encode_name: {"jobId": "AQAAAA=="}}
    else:
        event = {"session_name": SESSION, "event_type": "ANY", field.name: {"job_id": "AQAAAA=="}}
    ((block,),) = route_batch(json.dumps([event]).encode()).blocks.values()
    expected = "node_events" if field.name == "worker_lifecycle_event" else "job_events/01000000"
    assert block.category == expected


def test_event_types_with_a_job_id_are_found_in_the_wire_types() -> None:
    """Guards the test above against an empty list."""
    assert {"task_definition_event", "driver_job_lifecycle_event"} < {field.name for field in PAYLOADS_WITH_JOB_ID}
    assert len(PAYLOADS_WITH_JOB_ID) >= 10


def test_event_type_of_a_node_wins_over_a_job_id() -> None:
    assert category(eventType="NODE_LIFECYCLE_EVENT", taskDefinitionEvent={"jobId": "AQAAAA=="}) == "node_events"


def test_snake_case_names_are_read() -> None:
    """Ray can be configured to preserve the names of its proto files."""
    event = {
        "session_name": SESSION,
        "event_type": "TASK_DEFINITION_EVENT",
        "source_type": "CORE_WORKER",
        "node_id": NODE,
        "task_definition_event": {"job_id": "AQAAAA=="},
    }
    assert route_event(json.dumps(event).encode()) == (SESSION, "job_events/01000000", NODE_HEX)


def test_names_of_ray_2_49_are_read() -> None:
    """Task lifecycles were called executions in that version."""
    assert category(taskExecutionEvent={"jobId": "AQAAAA=="}) == "job_events/01000000"


def test_node_id_is_taken_from_worker_processes_only() -> None:
    """Events of the GCS can be about any node."""
    fields = {"sessionName": SESSION, "nodeId": NODE}
    assert route_event(json.dumps({**fields, "sourceType": "CORE_WORKER"}).encode()).node == NODE_HEX
    assert route_event(json.dumps({**fields, "sourceType": "GCS"}).encode()).node is None


@pytest.mark.parametrize("job", ["../../etc", "a/b", "\0", "!!!!", "%2e%2e"])
def test_a_job_id_never_becomes_a_path(job: str) -> None:
    """An id that is no safe name becomes hex, or the event becomes a node event."""
    found = category(taskDefinitionEvent={"jobId": job})
    assert found == "node_events" or found.removeprefix("job_events/").isalnum()


def test_wrong_types_are_tolerated() -> None:
    """Numbers for strings, strings for objects, null for any value."""
    assert category(eventType=7, taskDefinitionEvent={"jobId": 12}) == "job_events/12"
    assert category(eventType=None, taskDefinitionEvent="x", sourceType=[], nodeId={}) == "node_events"


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (b"3", "not_an_object"),
        (b"null", "not_an_object"),
        (b"[1]", "not_an_object"),
        (b"{}", "no_session"),
        (b'{"sessionName": ""}', "no_session"),
        (b'{"sessionName": 5}', "invalid_session"),
        (b'{"sessionName": "../../etc/passwd"}', "invalid_session"),
        (b'{"sessionName": "session_2026-11-15_19-18-08_055078_1/../x"}', "invalid_session"),
        (b'{"sessionName": "session_2026-11-15_19-18-08_055078_1\\u0000"}', "invalid_session"),
        (b'{"sessionName": "\xff"}', "not_json"),
    ],
)
def test_event_without_a_valid_session_is_rejected(event: bytes, reason: str) -> None:
    """Session names are untrusted, and become names of directories and keys."""
    with pytest.raises(RoutingError, match=f"^{reason}$"):
        route_event(event)
