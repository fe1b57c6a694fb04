"""Root causes and consequences. Every failure has at most one cause among the others, and so exactly one root."""

import re
from collections.abc import Iterator

import msgspec

from rayhistory.diagnosis.failures import CLOCK_TOLERANCE_MS, Failure, find_failures, job_ends
from rayhistory.diagnosis.lenient_json import numbers
from rayhistory.diagnosis.rules.cluster.placement_groups import impossible, without_group
from rayhistory.diagnosis.session_facts import ActorFacts, SessionFacts
from rayhistory.diagnosis.tracebacks import chained_exceptions, last_traceback, own_output, parse_exception, plain_text

_NODE_WINDOW_MS = 30_000
_CONSEQUENCE_WINDOW_MS = 60_000
_DEPENDENT_ERRORS = (
    "OWNER_DIED", "OBJECT_LOST", "OBJECT_UNRECONSTRUCTABLE", "OBJECT_UNRECONSTRUCTABLE_LINEAGE_EVICTED",
    "OBJECT_UNRECONSTRUCTABLE_MAX_ATTEMPTS_EXCEEDED", "OBJECT_UNRECONSTRUCTABLE_PUT", "OBJECT_FETCH_TIMED_OUT",
    "OBJECT_IN_PLASMA", "DEPENDENCY_RESOLUTION_FAILED", "NODE_DIED", "LOCAL_RAYLET_DIED", "WORKER_DIED",
)  # fmt: skip
"""Errors that follow from the death of a process or a node."""
_RAISED_FOR = {
    "WorkerCrashedError": ("WORKER_DIED",),
    "OutOfMemoryError": ("OUT_OF_MEMORY",),
    "NodeDiedError": ("NODE_DIED",),
    "LocalRayletDiedError": ("LOCAL_RAYLET_DIED",),
    "TaskCancelledError": ("TASK_CANCELLED",),
    "RuntimeEnvSetupError": ("RUNTIME_ENV_SETUP_FAILED",),
    "OutOfDiskError": ("OUT_OF_DISK_ERROR",),
    "ObjectStoreFullError": ("OBJECT_STORE_FULL",),
    "TaskUnschedulableError": ("TASK_UNSCHEDULABLE_ERROR",),
    "ActorUnschedulableError": ("ACTOR_UNSCHEDULABLE_ERROR",),
    "OwnerDiedError": ("OWNER_DIED",),
}
"""Error types of tasks, by the exception that they cause in a driver."""
_ACTOR_EXCEPTIONS = ("ActorDiedError", "ActorUnavailableError", "RayActorError", "ActorUnschedulableError")
_ACTOR_ERRORS = ("ACTOR_DIED", "ACTOR_UNAVAILABLE")
_OBJECT_EXCEPTIONS = (
    "ObjectLostError", "OwnerDiedError", "ObjectReconstructionFailedError", "ObjectFetchTimedOutError",
    "ObjectReconstructionFailedMaxAttemptsExceededError", "ObjectReconstructionFailedLineageEvictedError",
    "ReferenceCountingAssertionError",
)  # fmt: skip
_NO_NAMED_ACTOR = re.compile(r"Failed to look up actor with name '([^'\n]{1,300})'")
_LOW_MEMORY = "killed due to the node running low on memory"
_OOM_WINDOW_MS = 3_000
_LAST_WINDOW_MS = 10_000
_CLEAN_UP_TEXT = "its job has finished"


class Chain(msgspec.Struct, frozen=True):
    """A root cause and all its consequences."""

    root: Failure
    consequences: list[Failure]
    by_time: frozenset[tuple[str, str]] = frozenset()
    """Keys of jobs that were added only because the root failed just before them."""


def find_chains(facts: SessionFacts) -> list[Chain]:
    """Group all failures by their root."""
    failures = find_failures(facts)
    links = _Links(facts, failures)
    chains: dict[tuple[str, str], list[Failure]] = {}
    by_key = {failure.key: failure for failure in failures}
    for failure in failures:
        root = links.root(failure)
        if root is None:
            continue
        members = chains.setdefault(root.key, [])
        if root.key != failure.key:
            members.append(failure)
    return [Chain(by_key[key], members, frozenset(links.by_time)) for key, members in chains.items()]


class _Links:
    """Links each failure to the failure that caused it."""

    def __init__(self, facts: SessionFacts, failures: list[Failure]) -> None:
        self._facts = facts
        self._failures = failures
        self._by_key = {failure.key: failure for failure in failures}
        self._ends = job_ends(facts)
        self._origins = self._find_origins()
        self._creations = {
            failure.tasks.actor_id: failure
            for failure in self._of_kind("tasks")
            if failure.tasks and failure.tasks.type == "ACTOR_CREATION_TASK"
        }
        self._looping = self._workers_of_loops()
        self.by_time: set[tuple[str, str]] = set()
        """Keys of jobs for which only the time names a cause."""

    def root(self, failure: Failure) -> Failure | None:
        """Follow the links to the first cause; None for a task or actor that only ended with its job.

        A failed job always has a root. If its links lead to an end that was no failure, the job itself is the root.
        """
        path = [failure]
        while True:
            if self._is_clean_up(path[-1]):
                return failure if failure.kind == "job" else None
            parent = self._parent(path[-1])
            if parent is None:
                return path[-1]
            if parent in path:  # they blame each other: the first of them is the root of all
                return min(path[path.index(parent) :], key=lambda each: (each.at_ms or 0, each.key))
            path.append(parent)

    def _of_kind(self, kind: str) -> Iterator[Failure]:
        return (failure for failure in self._failures if failure.kind == kind)

    def _find_origins(self) -> dict[tuple[str, str], Failure]:
        """Return the group of tasks that raised each exception first, by job and fingerprint."""
        origins: dict[tuple[str, str], Failure] = {}
        for failure in sorted(self._of_kind("tasks"), key=lambda each: (_passed_on(each), each.at_ms or 0)):
            if failure.exception is not None:
                origins.setdefault((failure.job_id, failure.fingerprint), failure)
        return origins

    def _workers_of_loops(self) -> dict[str, Failure]:
        """Map each worker of an actor that died after restarts to the failure of this actor.

        So the deaths of these workers have one cause.
        """
        return {
            worker: failure
            for failure in self._of_kind("actor")
            if failure.actor and failure.actor.restarts
            for worker in failure.actor.workers
        }

    def _is_clean_up(self, failure: Failure) -> bool:
        if failure.kind == "tasks" and failure.tasks and failure.error_type == "WORKER_DIED":
            worker = failure.tasks.worker_id
            actor = self._facts.actor(failure.tasks.actor_id or "")
            return (
                _CLEAN_UP_TEXT in failure.text
                or (worker is not None and self._ended_in_order(worker))
                or (actor is not None and self._ended_with_owner(actor, failure))
            )
        if failure.kind == "actor":
            return failure.actor is not None and self._ended_with_owner(failure.actor, failure)
        if failure.kind == "waiting":
            job = self._facts.job(failure.job_id)
            return job is not None and job.status == "SUCCEEDED"
        return False

    def _ended_with_owner(self, actor: ActorFacts, failure: Failure) -> bool:
        """Return True for an actor that ended because its driver or its parent ended, which was not a failure."""
        if actor.reason != "OWNER_DIED":
            return False
        return ("worker", actor.owner_id) not in self._by_key and not self._dead_node_before(failure)

    def _ended_in_order(self, worker_id: str) -> bool:
        """Return True for a worker that exited on request or with its job. This is not a failure."""
        return self._facts.worker(worker_id) is not None and ("worker", worker_id) not in self._by_key

    def _parent(self, failure: Failure) -> Failure | None:
        find = {"worker": self._cause_of_worker, "actor": self._cause_of_actor, "tasks": self._cause_of_tasks,
                "job": self._cause_of_job}.get(failure.kind)  # fmt: skip
        return find(failure) if find else None

    def _cause_of_worker(self, failure: Failure) -> Failure | None:
        worker = failure.worker
        if worker is None:
            return None
        node = self._by_key.get(("node", worker.node_id or ""))
        if node and _is_near(node.at_ms, failure.at_ms, _NODE_WINDOW_MS):
            return node
        if worker.exit_type == "NODE_OUT_OF_MEMORY":
            return self._largest_killed(failure)
        if loop := self._looping.get(worker.worker_id):
            return loop
        if worker.exit_type == "USER_ERROR":
            actor = self._facts.actor_in(worker.worker_id)
            return self._creations.get(actor.actor_id) if actor else None
        return None

    def _largest_killed(self, failure: Failure) -> Failure | None:
        """Return the worker with most memory of those that Ray's memory monitor killed on a node at the same time.

        Return None if this is the failed worker itself.
        """
        node = failure.worker.node_id if failure.worker else None
        killed = [each for each in self._of_kind("worker") if each.worker and each.worker.node_id == node
                  and each.worker.exit_type == "NODE_OUT_OF_MEMORY"
                  and _is_near(each.at_ms, failure.at_ms, _OOM_WINDOW_MS)]  # fmt: skip
        largest = max(killed, key=lambda each: (each.worker.memory_used_bytes or 0) if each.worker else 0, default=None)
        return largest if largest and largest.key != failure.key else None

    def _cause_of_actor(self, failure: Failure) -> Failure | None:
        actor = failure.actor
        if actor is None:
            return None
        if actor.cause == "creation_task_failure_context":
            return self._creations.get(actor.actor_id)
        if actor.reason == "NODE_DIED" or actor.cause == "node_died_error_context":
            return self._by_key.get(("node", actor.node_id or "")) or self._dead_node_before(failure)
        if actor.reason == "OWNER_DIED":
            return self._by_key.get(("worker", actor.owner_id)) or self._dead_node_before(failure)
        if actor.restarts:
            return None  # the root of its loop; the rule looks at its workers
        return self._by_key.get(("worker", actor.worker_id or "")) or self._creations.get(actor.actor_id)

    def _cause_of_tasks(self, failure: Failure) -> Failure | None:
        group = failure.tasks
        if group is None:
            return None
        if group.worker_id and (worker := self._by_key.get(("worker", group.worker_id))):
            return worker
        if group.actor_id and group.type != "ACTOR_CREATION_TASK":
            actor = self._by_key.get(("actor", group.actor_id))
            if actor:
                return actor
        if group.error_type == "NODE_DIED" and (node := self._by_key.get(("node", group.node_id or ""))):
            return node
        if group.error_type in _DEPENDENT_ERRORS:
            return self._death_before(failure)
        if _passed_on(failure):
            return self._passed_on_from(failure)
        return None

    def _passed_on_from(self, failure: Failure) -> Failure | None:
        """Return the cause of a task that failed because it got another task's exception."""
        origin = self._origins.get((failure.job_id, failure.fingerprint))
        if origin and origin.key != failure.key:
            return origin
        return self._cause_of_exception(failure, failure.text)

    def _cause_of_job(self, failure: Failure) -> Failure | None:
        job = failure.job
        if job is None:
            return None
        if job.status == "STOPPED":
            return self._infeasible(failure)
        text = own_output(failure.text)
        if (found := self._cause_of_exception(failure, text)) or _explains_itself(text):
            return found
        if found := self._failed_last(failure):
            self.by_time.add(failure.key)
        return found

    def _failed_last(self, failure: Failure) -> Failure | None:
        """Return the task that failed last in the ten seconds before the driver did.

        Used only if the driver exited with an error code and none of its output is stored.
        """
        if failure.job is None or failure.job.output or failure.job.exit_code in (None, 0):
            return None
        tasks = [
            each
            for each in self._of_kind("tasks")
            if each.job_id == failure.job_id
            and not self._is_clean_up(each)
            and _is_before(each.last_ms, failure.at_ms, _LAST_WINDOW_MS)
        ]
        return max(tasks, key=lambda each: each.last_ms or 0, default=None)

    def _cause_of_exception(self, failure: Failure, text: str) -> Failure | None:
        """Return the failure that an exception reports, by its fingerprint or by its type."""
        if _LOW_MEMORY in (failure.job.message if failure.job else ""):
            return self._killed_last(failure)
        text = last_traceback(text)[-20_000:]
        for part in chained_exceptions(text):
            origin = self._origins.get((failure.job_id, msgspec.structs.replace(failure, text=part).fingerprint))
            if origin and origin.key != failure.key and "ray::" in part:
                return origin
        if actor := self._looked_up(text, failure):
            return actor
        for name in sorted((*_RAISED_FOR, *_ACTOR_EXCEPTIONS, *_OBJECT_EXCEPTIONS, "GetTimeoutError"),
                           key=lambda name: text.rfind(f"ray.exceptions.{name}"), reverse=True):  # fmt: skip
            if f"ray.exceptions.{name}" not in text:
                return None
            if found := self._reported_by(name, failure, text):
                return found
        return None

    def _killed_last(self, failure: Failure) -> Failure | None:
        killed = [each for each in self._of_kind("worker") if each.worker and _is_before(each.at_ms, failure.at_ms)
                  and each.worker.exit_type == "NODE_OUT_OF_MEMORY"]  # fmt: skip
        return max(killed, key=lambda each: each.at_ms or 0, default=None)

    def _reported_by(self, name: str, failure: Failure, text: str) -> Failure | None:
        if name == "GetTimeoutError":
            return self._waiting(failure)
        if name in _ACTOR_EXCEPTIONS and (
            actor := self._named_actor(failure, text) or self._ended_actor(failure, text)
        ):
            return actor
        tasks = [each for each in self._of_kind("tasks")
                 if each.job_id == failure.job_id and each.error_type in _RAISED_FOR.get(name, ())
                 and each.key != failure.key and not self._is_clean_up(each)]  # fmt: skip
        if tasks:
            return max(tasks, key=lambda each: each.last_ms or each.at_ms or 0)
        if name in _OBJECT_EXCEPTIONS or name in ("WorkerCrashedError", "NodeDiedError"):
            return self._death_before(failure)
        return None

    def _named_actor(self, failure: Failure, text: str) -> Failure | None:
        actors = [each for each in self._of_kind("actor") if each.job_id == failure.job_id and each.key != failure.key]
        named = [each for each in actors if each.id in text]
        chosen = named or actors
        return max(chosen, key=lambda each: each.at_ms or 0) if chosen else None

    def _ended_actor(self, failure: Failure, text: str) -> Failure | None:
        """Return the failed calls of an actor whose death was no failure, such as one that the program killed."""
        calls = [each for each in self._of_kind("tasks") if each.job_id == failure.job_id and each.tasks
                 and each.error_type in _ACTOR_ERRORS and each.tasks.actor_id and each.tasks.actor_id in text
                 and each.key != failure.key and ("actor", each.tasks.actor_id) not in self._by_key]  # fmt: skip
        return min(calls, key=lambda each: each.at_ms or 0, default=None)

    def _looked_up(self, text: str, failure: Failure) -> Failure | None:
        """Return the death of an actor that a job could not find by its name."""
        found = _NO_NAMED_ACTOR.search(text[-2_000:])
        actors = [each for each in self._of_kind("actor") if found and each.actor and each.actor.name == found[1]
                  and each.at_ms is not None and failure.at_ms is not None
                  and each.at_ms <= failure.at_ms + CLOCK_TOLERANCE_MS]  # fmt: skip
        return max(actors, key=lambda each: each.at_ms or 0, default=None)

    def _waiting(self, failure: Failure) -> Failure | None:
        groups = [each for each in self._of_kind("waiting") if each.job_id == failure.job_id]
        infeasible = [each for each in groups if is_infeasible(each, self._facts)]
        chosen = infeasible or [each for each in groups if each.waiting and each.waiting.state != "PENDING_ARGS_AVAIL"]
        return min(chosen, key=lambda each: each.at_ms or 0) if chosen else None

    def _infeasible(self, failure: Failure) -> Failure | None:
        groups = (each for each in self._of_kind("waiting") if each.job_id == failure.job_id)
        return next((each for each in groups if is_infeasible(each, self._facts)), None)

    def _death_before(self, failure: Failure) -> Failure | None:
        """Return the last death before the failure: of a node or, if none died, of a process."""
        if node := self._dead_node_before(failure):
            return node
        workers = [each for each in self._of_kind("worker") if _is_before(each.at_ms, failure.last_ms or failure.at_ms)
                   and each.job_id in ("", failure.job_id)]  # fmt: skip
        return max(workers, key=lambda each: each.at_ms or 0) if workers else None

    def _dead_node_before(self, failure: Failure) -> Failure | None:
        at_ms = failure.last_ms or failure.at_ms
        nodes = [each for each in self._of_kind("node") if _is_before(each.at_ms, at_ms)]
        return max(nodes, key=lambda each: each.at_ms or 0) if nodes else None


def is_infeasible(failure: Failure, facts: SessionFacts) -> bool:
    """Return True if no node of the session ever had the resources that the waiting tasks request."""
    group = failure.waiting
    if group is None or group.state != "PENDING_NODE_ASSIGNMENT" or not facts.nodes:
        return False
    wanted, group_id = without_group(numbers(group.required_resources))
    if group_id and (found := facts.placement_group(group_id)):
        return not found.placed and bool(impossible(found, facts))
    return bool(wanted) and not any(
        all(node.resources.get(name, 0.0) >= amount for name, amount in wanted.items()) for node in facts.nodes
    )


def _passed_on(failure: Failure) -> bool:
    """Return True if a task failed because of another task: its error contains the error of the other task."""
    return "ray.exceptions." in plain_text(failure.text)


def _is_near(one: int | None, other: int | None, window_ms: int) -> bool:
    return one is not None and other is not None and abs(one - other) <= window_ms


def _explains_itself(text: str) -> bool:
    """Return True if the output of a driver ends with an exception of the driver itself."""
    return parse_exception(last_traceback(text)) is not None


def _is_before(cause: int | None, effect: int | None, window_ms: int = _CONSEQUENCE_WINDOW_MS) -> bool:
    """Return True if `cause` happened before `effect`, by at most `window_ms`. Clocks may differ a little."""
    if cause is None or effect is None:
        return False
    return -CLOCK_TOLERANCE_MS - 3_000 <= effect - cause <= window_ms
