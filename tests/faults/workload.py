"""Tasks of a Ray that exists only here: their events are posted as Ray posts them, and every answer is remembered.

A batch without a 200 is sent again, later and after others, or not at all; some that had one are sent again as well.
The owner of a task and the worker that runs it post to the collectors of different nodes.
"""

import base64
import http.client
import json
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

SENT_AGAIN, ACKED_AND_SENT_AGAIN = 0.85, 0.06
BEGIN = 1_794_770_000
STATES = ("PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "SUBMITTED_TO_WORKER", "RUNNING", "FINISHED", "FAILED")
"""Those that happen here, in Ray's order."""


@dataclass
class Batch:
    session: str
    names: list[str]
    body: bytes


class Poster:
    """What is sent to one node's collector."""

    def __init__(self, seed: str, node: str, port: int) -> None:
        self.others: list[Poster] = [self]
        """The posters of all nodes."""
        self.node = node
        self.session = ""
        self.acked: dict[str, set[str]] = {}
        """By session: what was answered 200 here at least once."""
        self.sent: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.again = 0
        self._port, self._dice = port, random.Random(seed)
        self._outbox: list[Batch] = []
        self._turn = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._connection: http.client.HTTPConnection | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def known(self) -> dict[str, set[str]]:
        with self._turn:
            return {session: set(names) for session, names in self.acked.items()}

    def add(self, batch: Batch) -> None:
        """Somewhere among what waits, so that the order is not that of the events."""
        with self._turn:
            self._outbox.insert(self._dice.randrange(len(self._outbox) + 1), batch)

    def _run(self) -> None:
        while not self._stop.wait(self._dice.uniform(0.0, 0.04)):
            if len(self._outbox) < 20:
                self._invent()
            with self._turn:
                batch = self._outbox.pop(0)
            self._send(batch)

    def _invent(self) -> None:
        """Some tasks: this node is the owner, any node runs them."""
        for_owner, for_worker = [], []
        for _ in range(self._dice.randrange(1, 12)):
            owner, worker = task_events(self._dice, self.session, self.node)
            for_owner += owner
            for_worker += worker
        self._dice.shuffle(for_owner)
        self.add(self._batch(for_owner, self.node))
        if for_worker:
            other = self._dice.choice(self.others)
            other.add(self._batch(for_worker, other.node))

    def _batch(self, events: list[dict[str, Any]], node: str) -> Batch:
        for event in events:
            event["nodeId"] = b64(bytes.fromhex(node))
        return Batch(self.session, [event["eventId"] for event in events], json.dumps(events).encode())

    def _send(self, batch: Batch) -> None:
        with self._turn:
            self.sent.update(batch.names)
        status = self._post(batch.body)
        with self._turn:
            self.statuses[status] += 1
            if status == 200:
                self.acked.setdefault(batch.session, set()).update(batch.names)
        if status != 200:
            time.sleep(0.02)
        if self._dice.random() < (ACKED_AND_SENT_AGAIN if status == 200 else SENT_AGAIN):
            self.again += 1
            self.add(batch)

    def _post(self, body: bytes) -> int:
        """0 when there was no answer."""
        try:
            self._connection = self._connection or http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
            self._connection.request("POST", "/v1/events", body, {"Content-Type": "application/json"})
            answer = self._connection.getresponse()
            answer.read()
            return answer.status
        except (OSError, http.client.HTTPException):
            if self._connection:
                self._connection.close()
            self._connection = None
            return 0


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def at(second: float) -> str:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(BEGIN + int(second)))
    return f"{stamp}.{int(second % 1 * 1e9):09d}Z"


def task_events(dice: random.Random, session: str, node: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Of one task: what its owner says, and what its worker says."""
    job = dice.choice(["AQAAAA==", "AgAAAA=="])
    task, name = dice.randbytes(24), f"stage_{dice.randrange(9)}"
    begin = dice.uniform(0, 3000)
    owner, worker = [], []
    for attempt in range(dice.choice([1, 1, 1, 2])):
        key = {"taskId": b64(task), "taskAttempt": attempt, "jobId": job}
        definition = {
            **key, "taskName": name, "taskType": "NORMAL_TASK", "language": "PYTHON",
            "taskFunc": {"pythonFunctionDescriptor": {"moduleName": "work", "functionName": name}},
        }  # fmt: skip
        owner.append(_event(dice, session, "TASK_DEFINITION_EVENT", "taskDefinitionEvent", definition))
        end = dice.choice(["FINISHED", "FINISHED", "FINISHED", "FAILED", ""])
        reached = [*STATES[: dice.randrange(1, 4)], *([end] if end else [])]
        times = [{"state": state, "timestamp": at(begin + n)} for n, state in enumerate(reached)]
        update: dict[str, Any] = {**key, "stateTransitions": times, "nodeId": b64(bytes.fromhex(node))}
        if end == "FAILED":
            update["rayErrorInfo"] = {"errorMessage": f"{task.hex()} failed", "errorType": "TASK_EXECUTION_EXCEPTION"}
        owner.append(_event(dice, session, "TASK_LIFECYCLE_EVENT", "taskLifecycleEvent", update))
        if dice.random() < 0.7:
            running = {**key, "stateTransitions": [{"state": "RUNNING", "timestamp": at(begin + 3)}], "workerPid": 7}
            worker.append(_event(dice, session, "TASK_LIFECYCLE_EVENT", "taskLifecycleEvent", running))
    return owner, worker


def _event(dice: random.Random, session: str, kind: str, name: str, nested: dict[str, Any]) -> dict[str, Any]:
    return {
        "eventId": b64(dice.randbytes(18)), "sourceType": "CORE_WORKER", "eventType": kind,
        "timestamp": at(dice.uniform(0, 3000)), "severity": "INFO", "sessionName": session, name: nested, "message": "",
    }  # fmt: skip
