"""Events of clusters whose clocks are wrong, or whose parts are reported twice."""

import base64
import json
from datetime import UTC, datetime
from typing import Any

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp()
JOB, ACTOR, TASK = "01000000", "ab" * 12 + "01000000", "cd" * 8 + "ff" * 12 + "01000000"
NODES, WORKERS = ("1a" * 28, "2b" * 28), ("9c" * 28, "3d" * 28)


def encoded(hex_id: str) -> str:
    return base64.b64encode(bytes.fromhex(hex_id)).decode()


def at(seconds: float) -> str:
    """A time after noon, as Ray writes it."""
    return datetime.fromtimestamp(NOON + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def ms(seconds: float) -> int:
    return int((NOON + seconds) * 1000)


def actor_event(state: str, seconds: float, **transition: Any) -> dict[str, Any]:
    change = {"state": state, "timestamp": at(seconds), **transition}
    return {
        "eventId": f"actor-{state}-{seconds}",
        "eventType": "ACTOR_LIFECYCLE_EVENT",
        "timestamp": at(seconds),
        "actorLifecycleEvent": {"actorId": encoded(ACTOR), "stateTransitions": [change]},
    }


def alive_actor(seconds: float, place: int = 0) -> dict[str, Any]:
    node, worker = encoded(NODES[place]), encoded(WORKERS[place])
    return actor_event("ALIVE", seconds, nodeId=node, workerId=worker, pid=100 + place, port=7)


def dead_actor(seconds: float, message: str) -> dict[str, Any]:
    return actor_event("DEAD", seconds, deathCause={"actorDiedErrorContext": {"errorMessage": message}})


def restarting_actor(seconds: float, reason: str = "ACTOR_FAILURE") -> dict[str, Any]:
    return actor_event("RESTARTING", seconds, restartReason=reason)


def actor_export(state: str, seconds: float, **data: Any) -> dict[str, Any]:
    """A line of an export file, which has whole seconds."""
    actor = {"actor_id": encoded(ACTOR), "job_id": encoded(JOB), "state": state, **data}
    line = {"event_id": f"x{seconds}", "timestamp": int(NOON + seconds), "source_type": "EXPORT_ACTOR"}
    return {
        "eventType": "EXPORT_RECORD",
        "timestamp": at(seconds + 5),
        "exportRecord": {"file": "event_EXPORT_ACTOR.log", "line": line | {"event_data": actor}},
    }


def node_event(state: str, seconds: float, **transition: Any) -> dict[str, Any]:
    return {
        "eventId": f"node-{state}-{seconds}",
        "eventType": "NODE_LIFECYCLE_EVENT",
        "timestamp": at(seconds),
        "nodeLifecycleEvent": {
            "nodeId": encoded(NODES[0]),
            "stateTransitions": [{"state": state, "timestamp": at(seconds), **transition}],
        },
    }


def task_event(seconds: float, states: str, **fields: Any) -> dict[str, Any]:
    """A report about one attempt of one task."""
    changes = [{"state": state, "timestamp": at(seconds + i)} for i, state in enumerate(states.split())]
    return {
        "eventId": f"task-{seconds}-{json.dumps(fields)}",
        "eventType": "TASK_LIFECYCLE_EVENT",
        "timestamp": at(seconds),
        "taskLifecycleEvent": {
            "taskId": encoded(TASK), "taskAttempt": 0, "jobId": encoded(JOB), "stateTransitions": changes, **fields,
        },
    }  # fmt: skip


def placed_task(seconds: float, place: int, **fields: Any) -> dict[str, Any]:
    node, worker = encoded(NODES[place]), encoded(WORKERS[place])
    return task_event(seconds, "SUBMITTED_TO_WORKER", nodeId=node, workerId=worker, **fields)


EVENTS = [
    alive_actor(0), restarting_actor(10), actor_export("RESTARTING", 10.4), alive_actor(11, 1), dead_actor(20, "first"),
    restarting_actor(30, "LINEAGE_RECONSTRUCTION"), alive_actor(31), dead_actor(-50, "last"),
    node_event("ALIVE", 0), node_event("DEAD", -100, deathInfo={"reason": "UNEXPECTED_TERMINATION"}),
    placed_task(0, 0), placed_task(1, 1), task_event(3, "RUNNING", workerPid=7),
]  # fmt: skip
"""Events of all these kinds in one list, to test that the merge does not depend on order or repetition."""
