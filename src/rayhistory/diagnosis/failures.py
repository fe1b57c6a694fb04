"""The failures of a session as one type: nodes, workers, actors, groups of tasks, jobs and the session."""

from typing import Literal

import msgspec

from rayhistory.diagnosis.findings import Counts, Evidence
from rayhistory.diagnosis.fingerprints import fingerprint
from rayhistory.diagnosis.session_facts import VANISHED, ActorFacts, JobFacts, NodeFacts, SessionFacts, WorkerFacts
from rayhistory.diagnosis.tracebacks import RaisedException, parse_exception
from rayhistory.index.query.failure_groups import FailureGroup, WaitingGroup

Kind = Literal["session", "node", "worker", "actor", "tasks", "waiting", "job"]
_FAILED_EXITS = ("SYSTEM_ERROR", "NODE_OUT_OF_MEMORY", "USER_ERROR")
_INTENDED_NODE_DEATHS = ("EXPECTED_TERMINATION", "AUTOSCALER_DRAIN_IDLE")
_INTENDED_ACTOR_DEATHS = ("OUT_OF_SCOPE", "REF_DELETED", "RAY_KILL")
_INTENDED_TEXTS = ("INTENDED_USER_EXIT", "INTENDED_SYSTEM_EXIT", "ray.kill", "exit_actor()")
_INTERNAL_CLASSES = ("JobSupervisor",)
_CLEAN_UP_MS = 5_000
"""Time after the end of a job in which Ray's clean-up stops the job's workers."""
CLOCK_TOLERANCE_MS = 2_000
"""Maximum difference that is assumed between the clocks of nodes."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One failed node, worker, actor, job or session, or a group of tasks with the same error."""

    kind: Kind
    id: str
    job_id: str = ""
    at_ms: int | None = None
    last_ms: int | None = None
    count: int = 1
    error_type: str = ""
    text: str = ""
    function: str = ""
    node: NodeFacts | None = None
    worker: WorkerFacts | None = None
    actor: ActorFacts | None = None
    tasks: FailureGroup | None = None
    waiting: WaitingGroup | None = None
    job: JobFacts | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.id

    @property
    def counts(self) -> Counts:
        names = {"node": "nodes", "worker": "workers", "actor": "actors", "job": "jobs"}
        name = names.get(self.kind, "tasks")
        return Counts() if self.kind == "session" else Counts(**{name: self.count})

    def evidence(self, text: str) -> Evidence:
        """Return a text about this failure as evidence. It names the first task of a group."""
        kind = "task" if self.kind in ("tasks", "waiting") else self.kind
        group = self.tasks or self.waiting
        return Evidence(kind=kind, id=group.task_id if group else self.id, text=text, at_ms=self.at_ms)

    @property
    def exception(self) -> RaisedException | None:
        return parse_exception(self.text) if self.text else None

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.text, self.error_type)


def find_failures(facts: SessionFacts) -> list[Failure]:
    """Return every final failure, without retried attempts and tasks that ended with their job."""
    ends = job_ends(facts)
    found = [
        *(_node(node) for node in facts.nodes if _node_failed(node)),
        *(_worker(worker) for worker in facts.workers if _worker_failed(worker, ends)),
        *(_actor(actor) for actor in facts.actors if _actor_failed(actor)),
        *(
            _tasks(number, group)
            for number, group in enumerate(facts.failures.groups)
            if not group.retried and not group.at_job_end and not is_internal(group.function)
        ),
        *(_job(job) for job in facts.jobs if _job_failed(job)),
    ]
    found += [_waiting(number, group) for number, group in enumerate(facts.waiting) if not is_internal(group.function)]
    if facts.state == VANISHED:
        found.append(Failure(kind="session", id="", at_ms=facts.ended_ms))
    return found


def is_internal(function: str) -> bool:
    """Return True for the actors that Ray itself runs."""
    return function.partition(".")[0] in _INTERNAL_CLASSES


def job_ends(facts: SessionFacts) -> dict[str, int]:
    """Return the end of each job that has ended."""
    return {
        job.job_id: min(job.end_ms, job.driver_end_ms or job.end_ms)
        for job in facts.jobs
        if job.end_ms and not job.inferred
    }


def _node_failed(node: NodeFacts) -> bool:
    return node.state == "DEAD" and not node.inferred and node.reason not in _INTENDED_NODE_DEATHS


def _worker_failed(worker: WorkerFacts, ends: dict[str, int]) -> bool:
    if worker.exit_type not in _FAILED_EXITS or worker.type == "DRIVER":
        return False
    job_end = ends.get(worker.job_id or "")
    died = worker.end_ms
    cleaned_up = job_end is not None and died is not None and job_end <= died <= job_end + _CLEAN_UP_MS
    return worker.exit_type == "NODE_OUT_OF_MEMORY" or not cleaned_up


def _actor_failed(actor: ActorFacts) -> bool:
    if actor.state != "DEAD" or actor.inferred or not actor.cause or is_internal(actor.class_name):
        return False
    if actor.reason in _INTENDED_ACTOR_DEATHS:
        return False
    return not (actor.reason == "WORKER_DIED" and any(text in actor.text for text in _INTENDED_TEXTS))


def _job_failed(job: JobFacts) -> bool:
    return job.status in ("FAILED", "STOPPED") and not job.inferred


def _node(node: NodeFacts) -> Failure:
    return Failure(kind="node", id=node.node_id, at_ms=node.end_ms, text=node.message, node=node)


def _worker(worker: WorkerFacts) -> Failure:
    return Failure(kind="worker", id=worker.worker_id, job_id=worker.job_id or "", at_ms=worker.end_ms,
                   text=worker.exit_detail, worker=worker)  # fmt: skip


def _actor(actor: ActorFacts) -> Failure:
    return Failure(kind="actor", id=actor.actor_id, job_id=actor.job_id, at_ms=actor.end_ms, text=actor.text,
                   function=actor.class_name, actor=actor)  # fmt: skip


def _tasks(number: int, group: FailureGroup) -> Failure:
    return Failure(kind="tasks", id=str(number), job_id=group.job_id, at_ms=group.first_ms, last_ms=group.last_ms,
                   count=group.count, error_type=group.error_type, text=group.message, function=group.function,
                   tasks=group)  # fmt: skip


def _waiting(number: int, group: WaitingGroup) -> Failure:
    return Failure(kind="waiting", id=str(number), job_id=group.job_id, at_ms=group.since_ms, last_ms=group.until_ms,
                   count=group.count, function=group.function, waiting=group)  # fmt: skip


def _job(job: JobFacts) -> Failure:
    return Failure(kind="job", id=job.id, job_id=job.job_id, at_ms=job.end_ms, error_type=job.error_type or "",
                   text=job.output or job.message, job=job)  # fmt: skip
