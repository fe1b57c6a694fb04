"""Simulated Ray tasks and other entities: posts their events as Ray does and remembers every response.

A batch that did not get 200 is usually resent later, after other batches. Some acked batches are resent too. A task's
owner and its worker post to the collectors of different nodes.
"""

import base64
import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

RESEND_UNACKED, RESEND_ACKED = 0.85, 0.06
"""Probability that a batch is resent."""
START_S = 1_794_770_000
SKEWS_S = (0.0, 0.0, 5.0, -5.0, 3600.0, -3600.0, 315_360_000.0, -315_360_000.0)
"""How far a clock may be wrong: seconds, an hour, ten years."""
STATES = ("PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "SUBMITTED_TO_WORKER", "RUNNING", "FINISHED", "FAILED")
"""The states that occur here, in Ray's order."""

EntityEvents = Callable[[random.Random, str], list[dict[str, Any]]]


@dataclass
class Batch:
    session: str
    event_ids: list[str]
    body: bytes


class Poster:
    """Posts batches to one node's collector until stopped."""

    def __init__(self, seed: str, node: str, port: int, *, entities: EntityEvents | None = None) -> None:
        """`entities` makes the events of nodes, jobs, workers and actors, which only the head sends."""
        self.peers: list[Poster] = [self]
        """The posters of all nodes, this one included."""
        self.node = node
        self.session = ""
        self.acked: dict[str, set[str]] = {}
        """Event ids that got 200 at least once, by session."""
        self.sent: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.resent = 0
        self._port, self._rng = port, random.Random(seed)
        self._entities, self._entity_rng = entities, random.Random(f"{seed} entities")
        self._skew_s = self._rng.choice(SKEWS_S)
        self._outbox: list[Batch] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._connection: http.client.HTTPConnection | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def acked_so_far(self) -> dict[str, set[str]]:
        with self._lock:
            return {session: set(event_ids) for session, event_ids in self.acked.items()}

    def add(self, batch: Batch) -> None:
        """Queue a batch at a random position, so that batches are reordered."""
        with self._lock:
            self._outbox.insert(self._rng.randrange(len(self._outbox) + 1), batch)

    def _run(self) -> None:
        while not self._stop.wait(self._rng.uniform(0.0, 0.04)):
            if len(self._outbox) < 20:
                self._add_tasks()
            with self._lock:
                batch = self._outbox.pop(0)
            self._send(batch)

    def _add_tasks(self) -> None:
        """Queue the events of new tasks. This node owns them, a random node runs them."""
        from_owners, from_workers = [], []
        for _ in range(self._rng.randrange(1, 12)):
            peer = self._rng.choice(self.peers)
            owner, worker = task_events(self._rng, self.session, self.node, self._skew_s, peer._skew_s)
            from_owners += owner
            from_workers += worker
        self._rng.shuffle(from_owners)
        self.add(self._batch(from_owners, self.node))
        if from_workers:
            peer = self._rng.choice(self.peers)
            peer.add(self._batch(from_workers, peer.node))
        if self._entities:
            self.add(self._batch(self._entities(self._entity_rng, self.session), self.node))

    def _batch(self, events: list[dict[str, Any]], node: str) -> Batch:
        for event in events:
            event["nodeId"] = b64(bytes.fromhex(node))
        return Batch(self.session, [event["eventId"] for event in events], json.dumps(events).encode())

    def _send(self, batch: Batch) -> None:
        with self._lock:
            self.sent.update(batch.event_ids)
        status = self._post(batch.body)
        with self._lock:
            self.statuses[status] += 1
            if status == 200:
                self.acked.setdefault(batch.session, set()).update(batch.event_ids)
        if status != 200:
            time.sleep(0.02)
        if self._rng.random() < (RESEND_ACKED if status == 200 else RESEND_UNACKED):
            self.resent += 1
            self.add(batch)

    def _post(self, body: bytes) -> int:
        """Return the status, 0 without a response."""
        try:
            self._connection = self._connection or http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
            self._connection.request("POST", "/v1/events", body, {"Content-Type": "application/json"})
            response = self._connection.getresponse()
            response.read()
            return response.status
        except (OSError, http.client.HTTPException):
            if self._connection:
                self._connection.close()
            self._connection = None
            return 0


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def at(second: float) -> str:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(START_S + int(second)))
    return f"{stamp}.{int(second % 1 * 1e9):09d}Z"


def task_events(
    rng: random.Random, session: str, node: str, owner_skew_s: float = 0.0, worker_skew_s: float = 0.0
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the events of one task: its owner's, and its worker's. Their clocks may be wrong."""
    job = rng.choice(["AQAAAA==", "AgAAAA=="])
    task, name = rng.randbytes(24), f"stage_{rng.randrange(9)}"
    begin = rng.uniform(0, 3000)
    owner, worker = [], []
    for attempt in range(rng.choice([1, 1, 1, 2])):
        key = {"taskId": b64(task), "taskAttempt": attempt, "jobId": job}
        definition = {
            **key, "taskName": name, "taskType": "NORMAL_TASK", "language": "PYTHON",
            "taskFunc": {"pythonFunctionDescriptor": {"moduleName": "work", "functionName": name}},
        }  # fmt: skip
        owner.append(make_event(rng, session, "TASK_DEFINITION_EVENT", "taskDefinitionEvent", definition))
        end = rng.choice(["FINISHED", "FINISHED", "FINISHED", "FAILED", ""])
        reached = [*STATES[: rng.randrange(1, 4)], *([end] if end else [])]
        times = [{"state": state, "timestamp": at(begin + n + owner_skew_s)} for n, state in enumerate(reached)]
        update: dict[str, Any] = {
            **key, "stateTransitions": times, "nodeId": b64(bytes.fromhex(node)), "workerId": b64(rng.randbytes(28)),
        }  # fmt: skip
        if end == "FAILED":
            update["rayErrorInfo"] = {"errorMessage": f"{task.hex()} failed", "errorType": "TASK_EXECUTION_EXCEPTION"}
        owner.append(make_event(rng, session, "TASK_LIFECYCLE_EVENT", "taskLifecycleEvent", update))
        if rng.random() < 0.2:  # the attempt is reported from a second place
            elsewhere = {"nodeId": b64(rng.randbytes(28)), "workerId": b64(rng.randbytes(28)), "workerPid": 8}
            again = [{"state": "SUBMITTED_TO_WORKER", "timestamp": at(begin + rng.uniform(-9, 9) + owner_skew_s)}]
            second = {**key, "stateTransitions": again, **elsewhere}
            owner.append(make_event(rng, session, "TASK_LIFECYCLE_EVENT", "taskLifecycleEvent", second))
        if rng.random() < 0.7:
            transition = {"state": "RUNNING", "timestamp": at(begin + 3 + worker_skew_s)}
            running = {**key, "stateTransitions": [transition], "workerPid": 7}
            worker.append(make_event(rng, session, "TASK_LIFECYCLE_EVENT", "taskLifecycleEvent", running))
    return owner, worker


def make_event(rng: random.Random, session: str, kind: str, name: str, nested: dict[str, Any]) -> dict[str, Any]:
    return {
        "eventId": b64(rng.randbytes(18)), "sourceType": "CORE_WORKER", "eventType": kind,
        "timestamp": at(rng.uniform(0, 3000)), "severity": "INFO", "sessionName": session, name: nested, "message": "",
    }  # fmt: skip
