"""Workers that Ray's memory monitor killed."""

import re

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.headlines import one_line, size
from rayhistory.diagnosis.rules.exceptions.raised import failed_job, failed_task
from rayhistory.diagnosis.rules.processes.crash import dead_example_worker
from rayhistory.diagnosis.rules.processes.deaths import dead_worker, exit_evidence, function_of, process_name
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.index.query.failure_groups import FailureGroups

_HEADROOM = 1.2
_KILLED = re.compile(r"killed due to the node running low on memory|Memory usage \d+B exceeded threshold")
_THRESHOLD = re.compile(
    r"Memory usage (\d{1,18})B exceeded threshold of (\d{1,18})B \([\d.]{1,8}% of (\d{1,18})B limit\)"
)


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    worker = dead_worker(failure, facts)
    by_exit = worker is not None and worker.exit_type == "NODE_OUT_OF_MEMORY"
    by_error = failure.kind == "tasks" and failure.error_type == "OUT_OF_MEMORY"
    text = failure.job.message if failure.job else failure.text
    by_text = failure.kind in ("worker", "actor", "tasks", "job") and _KILLED.search(text[:4_000]) is not None
    if not (by_exit or by_error or by_text):
        return None
    evidence = [exit_evidence(worker)] if worker else []
    evidence.append(failure.evidence(one_line(text, 1_000)))
    return Match(group=f"{failure.job_id} {function_of(failure, facts)}", evidence=tuple(evidence[:1] or evidence))


def _describe(group: Group, facts: SessionFacts) -> Words:
    peaks = [worker.memory_used_bytes for root in group.roots
             if (worker := dead_worker(root, facts)) and worker.memory_used_bytes]  # fmt: skip
    used = f" when it used {size(max(peaks))}" if peaks else ""
    return Words(
        headline=one_line(f"{process_name(group, facts)} was killed by Ray's memory monitor{used}"
                          f"{_node_text(group, facts)}"),
        detail="The node was running low on memory, so Ray's memory monitor killed the worker.",
        suggestion=_suggestion(max(peaks, default=0)),
    )  # fmt: skip


def _node_text(group: Group, facts: SessionFacts) -> str:
    """Return the used memory of the node: as Ray measured it when it decided to kill, or else from samples."""
    worker = dead_worker(group.first, facts)
    if worker and (found := _THRESHOLD.search(worker.exit_detail)):
        used, threshold, limit = map(int, found.groups())
        return f": node memory {size(used)} of {size(limit)}, above the threshold of {size(threshold)}"
    samples = facts.samples.get(worker.node_id or "") if worker else None
    near = [each for each in (samples.memory if samples else []) if worker and worker.end_ms
            and -60_000 <= each.at_ms - worker.end_ms <= 5_000]  # fmt: skip
    if near:
        peak = max(near, key=lambda each: each.share)
        return f": node memory {size(peak.used)} of {size(peak.total)}"
    return ""


def _suggestion(peak: int) -> str:
    if not peak:
        return "Request memory for the task, so that fewer tasks run at once: @ray.remote(memory=…)."
    return (
        "Request the memory that the task needs, so that fewer tasks run at once: "
        f"@ray.remote(memory={peak * _HEADROOM:.1e}). This is the measured peak plus 20 %.".replace("e+0", "e")
    )


def _example() -> SessionFacts:
    worker = dead_example_worker(
        exit_type="NODE_OUT_OF_MEMORY", memory_used_bytes=5 << 30,
        exit_detail="1 worker(s) were killed due to the node running low on memory.",
    )  # fmt: skip
    task = failed_task("Task was killed due to the node running low on memory.", error_type="OUT_OF_MEMORY",
                       worker_id=worker.worker_id)  # fmt: skip
    output = "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
    return SessionFacts(jobs=[failed_job(output)], workers=[worker], failures=FailureGroups([task], 1, 1))


RULE = FailureRule(
    code="worker_oom_killed",
    meaning="Ray's memory monitor killed workers because their node was running low on memory.",
    match=_match,
    describe=_describe,
    example=Example(
        facts=_example(),
        headline="Worker 4376 on 10.0.0.7 (task train) was killed by Ray's memory monitor when it used 5.0 GiB",
    ),
)
