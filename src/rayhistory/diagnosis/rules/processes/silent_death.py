"""Deaths without output: was the process killed, or did it exit by itself?

Ray records neither the exit code nor the signal of a worker, unless its raylet reaps its children and logs this.
Otherwise the tasks are a hint: an idle process does not exit by itself, and code that exits does so in every attempt.
"""

import signal
from typing import Literal

import msgspec

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.findings import Confidence, Evidence
from rayhistory.diagnosis.headlines import duration, size
from rayhistory.diagnosis.rules.processes.deaths import dead_worker, exit_evidence, last_words, log_evidence, log_page
from rayhistory.diagnosis.session_facts import MemorySample, NodeSamples, SessionFacts, WorkerFacts
from rayhistory.index.query.failure_groups import FailureGroup

_NEAR_MS = 60_000
_ENOUGH_FREE = 0.95
"""Below this share of used memory, the kernel has no reason to kill a process (see `container_oom_killed`)."""
_CLEARLY_FREE = 0.8
"""Above this share, one task may have filled the memory between two samples, at each attempt."""
_SOON_MS = 1_000
"""A process that dies within this time after its first task started was probably not killed from outside."""


_MIN_ATTEMPTS = 3
"""Deaths of one task in as many processes, one after another, are no coincidence."""


class SilentDeath(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended that left no message: by a signal, by itself, or `either` if that is not known."""

    by: Literal["itself", "signal", "either"]
    confidence: Confidence
    cause: str
    """The reason for the end of the process, in a few words."""
    evidence: tuple[Evidence, ...] = ()


def silent_death(failure: Failure, facts: SessionFacts) -> SilentDeath | None:
    """Return how a process ended that left no message.

    Return None if that is not clear: the used memory was high or is unknown, or its output was not recorded.
    """
    worker = dead_worker(failure, facts)
    if failure.kind not in ("worker", "actor") or worker is None or worker.exit_type != "SYSTEM_ERROR":
        return None
    if reported := _reported(worker):
        return reported
    sample = memory_near(worker, facts)
    if sample is None or sample.share >= _ENOUGH_FREE or not _is_logged(worker, facts):
        return None
    memory = Evidence(kind="metric", id=worker.node_id or "", at_ms=sample.at_ms,
                      text=f"node memory {size(sample.used)} of {size(sample.total)}")  # fmt: skip
    found = _inferred(worker, facts, is_memory_free=sample.share < _CLEARLY_FREE)
    return msgspec.structs.replace(found, evidence=(exit_evidence(worker), log_evidence(worker, facts), memory))


def _reported(worker: WorkerFacts) -> SilentDeath | None:
    """Return the end of the process as the raylet logged it."""
    if worker.exit_signal is not None:
        text = f"signal {worker.exit_signal} ({_name(worker.exit_signal)})"
        return _certain("signal", text, worker, f"process {worker.pid} exited from signal {worker.exit_signal}")
    if worker.exit_status is not None:
        text = f"exit code {worker.exit_status}"
        return _certain("itself", text, worker, f"process {worker.pid} exited with status {worker.exit_status}")
    return None


def _certain(by: Literal["itself", "signal"], cause: str, worker: WorkerFacts, line: str) -> SilentDeath:
    url = log_page(worker.node_id, "raylet.out", f"time={worker.end_ms}") if worker.node_id and worker.end_ms else None
    log = Evidence(kind="log", id="raylet.out", text=line, at_ms=worker.end_ms, url=url)
    return SilentDeath(by=by, confidence="certain", cause=cause, evidence=(log, exit_evidence(worker)))


def _name(number: int) -> str:
    return next((each.name for each in signal.Signals if each == number), "unknown")


def _is_logged(worker: WorkerFacts, facts: SessionFacts) -> bool:
    return worker.stderr is not None or bool(last_words(worker, facts))


def memory_near(worker: WorkerFacts, facts: SessionFacts) -> MemorySample | None:
    """Return the sample with most used memory in the minute before and after a death; None if there is none."""
    samples = facts.samples.get(worker.node_id or "", NodeSamples())
    series = samples.cgroup_memory or samples.memory
    near = [each for each in series if worker.end_ms and abs(worker.end_ms - each.at_ms) <= _NEAR_MS]
    return max(near, key=lambda each: each.share, default=None)


def _inferred(worker: WorkerFacts, facts: SessionFacts, *, is_memory_free: bool) -> SilentDeath:
    """Infer the cause from the tasks that ran in the process."""
    end = worker.end_ms or 0
    running = [group for group in facts.failed_in(worker.worker_id) if _was_running(group, end)]
    if not running:
        return SilentDeath(by="signal", confidence="likely", cause="no task ran in it, so it did not exit by itself")
    group = min(running, key=lambda each: each.started_ms or end)
    deaths, attempts = _deaths(group, facts), _attempts(group, facts)
    if worker.stderr is None:  # a crash would have been reported there
        return SilentDeath(by="either", confidence="unexplained", cause="its log was not recorded")
    if attempts >= _MIN_ATTEMPTS and is_memory_free:
        cause = f"all {attempts} attempts of a task of {group.function} ended this way"
        return SilentDeath(by="itself", confidence="likely", cause=cause)
    if _has_finished(group, facts):
        return SilentDeath(by="either", confidence="unexplained", cause="other tasks of the function succeeded")
    if deaths > 1:
        cause = f"all {deaths:,} attempts of {group.function} ended this way"
        return SilentDeath(by="itself", confidence="likely", cause=cause)
    after = end - (group.started_ms or 0)
    if after <= _SOON_MS:
        cause = f"it died {duration(after)} after {group.function} was sent to it"
        return SilentDeath(by="itself", confidence="likely", cause=cause)
    return SilentDeath(by="either", confidence="unexplained", cause=f"{group.function} ran in it")


def _was_running(group: FailureGroup, end: int) -> bool:
    """Return True if tasks of a group ran in the process. Calls that its actor got after its end failed, too."""
    return group.type != "ACTOR_TASK" or (group.started_ms is not None and group.started_ms <= end)


def _deaths(group: FailureGroup, facts: SessionFacts) -> int:
    """Return the number of failed attempts of the group's function whose workers died."""
    return sum(each.count for each in facts.failures.groups if each.error_type == "WORKER_DIED"
               and not each.at_job_end and (each.job_id, each.function) == (group.job_id, group.function))  # fmt: skip


def _attempts(group: FailureGroup, facts: SessionFacts) -> int:
    """Return the number of processes that died while they ran the same task."""
    return len({each.worker_id for each in facts.failures.groups if each.error_type == "WORKER_DIED"
                and not each.at_job_end and (each.job_id, each.task_id) == (group.job_id, group.task_id)})  # fmt: skip


def _has_finished(group: FailureGroup, facts: SessionFacts) -> bool:
    return any((each.job_id, each.function) == (group.job_id, group.function) for each in facts.functions)
