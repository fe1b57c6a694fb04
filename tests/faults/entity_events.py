"""Events of simulated nodes, jobs, workers and actors, with skewed and stepping clocks.

All events of one entity are sent in one batch, so that they are stored together or not at all. Shares no code with the
project.
"""

import random
from typing import Any

from faults.workload import SKEWS_S, at, b64, make_event


def entity_events(rng: random.Random, session: str) -> list[dict[str, Any]]:
    """Return all events of one random node, job, worker or actor."""
    make = rng.choice([_node, _job, _worker, _restarted_actor, _revived_actor])
    events = [make_event(rng, session, *parts) for parts in make(rng)]
    for number, event in enumerate(events):
        event["message"] = str(number)  # their true order, for the verification
    rng.shuffle(events)
    return events


Parts = tuple[str, str, dict[str, Any]]
"""The type of an event, the name of its nested message, and the message."""


def _clock(rng: random.Random, *, steps: bool) -> list[str]:
    """Return a few times in the order in which they happened. A clock that steps is set between any two of them."""
    skew, times = rng.choice(SKEWS_S), []
    begin = rng.uniform(0, 3000)
    for number in range(12):
        if steps and rng.random() < 0.3:
            skew = rng.choice(SKEWS_S)
        times.append(at(begin + 3 * number + rng.random() + skew))
    return times


def _node(rng: random.Random) -> list[Parts]:
    node, times = b64(rng.randbytes(28)), _clock(rng, steps=True)
    changes = [{"state": "ALIVE", "timestamp": times[0], "resources": {"CPU": 2.0}}]
    if rng.random() < 0.7:
        death = {"reason": "UNEXPECTED_TERMINATION", "reasonMessage": f"lost {rng.randrange(99)}"}
        changes.append({"state": "DEAD", "timestamp": times[1], "deathInfo": death})
    definition = {"nodeId": node, "nodeIpAddress": f"10.0.0.{rng.randrange(255)}"}
    return [
        ("NODE_DEFINITION_EVENT", "nodeDefinitionEvent", definition),
        *(("NODE_LIFECYCLE_EVENT", "nodeLifecycleEvent", {"nodeId": node, "stateTransitions": [c]}) for c in changes),
    ]


def _job(rng: random.Random) -> list[Parts]:
    job, times = b64((rng.randrange(100, 2**31)).to_bytes(4, "little")), _clock(rng, steps=True)
    states = ["CREATED", "FINISHED"][: rng.choice([1, 2, 2])]
    return [
        ("DRIVER_JOB_DEFINITION_EVENT", "driverJobDefinitionEvent", {"jobId": job, "driverPid": "7"}),
        *(
            ("DRIVER_JOB_LIFECYCLE_EVENT", "driverJobLifecycleEvent",
             {"jobId": job, "stateTransitions": [{"state": state, "timestamp": time}]})
            for state, time in zip(states, times, strict=False)
        ),
    ]  # fmt: skip


def _worker(rng: random.Random) -> list[Parts]:
    worker, times = b64(rng.randbytes(28)), _clock(rng, steps=True)
    definition = {"workerId": worker, "nodeId": b64(rng.randbytes(28)), "workerType": "WORKER", "pid": "9"}
    changes: list[dict[str, Any]] = [{"state": "ALIVE", "timestamp": times[0]}]
    if rng.random() < 0.6:
        death = {"exitType": "SYSTEM_ERROR", "exitDetail": f"exit {rng.randrange(99)}"}
        changes.append({"state": "DEAD", "timestamp": times[1], "deathInfo": death})
    return [
        ("WORKER_DEFINITION_EVENT", "workerDefinitionEvent", definition),
        *(
            ("WORKER_LIFECYCLE_EVENT", "workerLifecycleEvent", {"workerId": worker, "stateTransitions": [change]})
            for change in changes
        ),
    ]


def _restarted_actor(rng: random.Random) -> list[Parts]:
    """An actor that fails and restarts a few times, and dies at most once. Its clock may step at any time."""
    restarts = [("RESTARTING", "ACTOR_FAILURE"), ("ALIVE", "")] * rng.randrange(3)
    end = [("DEAD", "")] if rng.random() < 0.6 else []
    return _actor(rng, [("PENDING_CREATION", ""), ("ALIVE", ""), *restarts, *end], steps=True)


def _revived_actor(rng: random.Random) -> list[Parts]:
    """An actor that dies, is revived by lineage reconstruction, and may die again. Its clock is skewed."""
    end = [("DEAD", "")] if rng.random() < 0.6 else []
    revived = [("ALIVE", ""), ("DEAD", ""), ("RESTARTING", "LINEAGE_RECONSTRUCTION"), ("ALIVE", ""), *end]
    return _actor(rng, revived, steps=False)


def _actor(rng: random.Random, states: list[tuple[str, str]], *, steps: bool) -> list[Parts]:
    actor = b64(rng.randbytes(16))
    parts: list[Parts] = [("ACTOR_DEFINITION_EVENT", "actorDefinitionEvent", {"actorId": actor, "className": "A"})]
    for number, ((state, reason), time) in enumerate(zip(states, _clock(rng, steps=steps), strict=False)):
        change: dict[str, Any] = {"state": state, "timestamp": time, "restartReason": reason or "ACTOR_FAILURE"}
        if state == "ALIVE":
            place = {"nodeId": b64(rng.randbytes(28)), "workerId": b64(rng.randbytes(28))}
            change |= {**place, "pid": rng.randrange(1, 9999), "port": 1}
        if state == "DEAD":
            change["deathCause"] = {"actorDiedErrorContext": {"errorMessage": f"death {number}"}}
        parts.append(("ACTOR_LIFECYCLE_EVENT", "actorLifecycleEvent", {"actorId": actor, "stateTransitions": [change]}))
    return parts
