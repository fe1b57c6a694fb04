"""Helpers for rules about crashes: patterns in the last output of a process, and its stack trace."""

import re

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.headlines import one_line
from rayhistory.diagnosis.rules.exceptions.raised import failed_job, failed_task
from rayhistory.diagnosis.rules.processes.deaths import (
    dead_worker,
    exit_evidence,
    function_of,
    last_words,
    log_evidence,
    process_name,
)
from rayhistory.diagnosis.rules.rule import Example, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts, WorkerFacts
from rayhistory.index.query.failure_groups import FailureGroups

_NATIVE_FRAME = re.compile(r'^ {2}File "([^"\n]*)", line (\d+) in ([^\n]*)$', re.MULTILINE)
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3")
_END_CHARS = 16_000
"""Patterns are searched only in this many characters at the end of an output. Earlier errors were not fatal."""


def match_crash(
    failure: Failure, facts: SessionFacts, signs: re.Pattern[str], signals: tuple[int, ...]
) -> Match | None:
    """Match a process by its last output, or by the signal that its raylet reported."""
    worker = dead_worker(failure, facts)
    if failure.kind not in ("worker", "actor") or worker is None or worker.exit_type != "SYSTEM_ERROR":
        return None
    words = last_words(worker, facts)
    if worker.exit_signal not in signals and not signs.search(words[-_END_CHARS:]):
        return None
    return Match(
        group=f"{failure.job_id} {function_of(failure, facts)}",
        evidence=(log_evidence(worker, facts), exit_evidence(worker)),
        cause=_place(words),
    )


def _place(words: str) -> str:
    """Return the innermost frame outside of libraries in the stack trace of faulthandler."""
    frames = _NATIVE_FRAME.findall(words)
    own = [frame for frame in frames if not any(part in frame[0] for part in _LIBRARIES)]
    chosen = (own or frames)[:1]
    return next((f"{file.rpartition('/')[2]}:{line} in {name}" for file, line, name in chosen), "")


def describe_crash(group: Group, facts: SessionFacts, problem: str) -> Words:
    place = f" in {group.match.cause}" if group.match.cause else ""
    return Words(
        headline=one_line(f"{process_name(group, facts)} {problem}{place}"),
        detail="The process printed a stack trace before it died. See the evidence.",
        suggestion="Find the native library at the top of the stack trace. Update it, or reproduce the call in a "
        "single process with PYTHONFAULTHANDLER=1.",
    )


def dead_example_worker(**more: object) -> WorkerFacts:
    values: dict[str, object] = {
        "worker_id": "cd" * 28, "exit_type": "SYSTEM_ERROR", "exit_detail": "Worker unexpectedly exits.", "pid": 4376,
        "ip": "10.0.0.7", "node_id": "ef" * 28, "job_id": "01000000", "end_ms": 1_800_000_000_990, "stderr": "",
    }  # fmt: skip
    return WorkerFacts(**{**values, **more})  # type: ignore[arg-type]


def death_facts(worker: WorkerFacts, **more: object) -> SessionFacts:
    """Return a session whose job failed because a worker died, for examples."""
    task = failed_task("RpcError: Socket closed", error_type="WORKER_DIED", worker_id=worker.worker_id,
                       started_ms=(worker.end_ms or 0) - 10_000)  # fmt: skip
    output = (
        'Traceback (most recent call last):\n  File "/app/main.py", line 3, in <module>\n'
        "ray.exceptions.WorkerCrashedError: The worker died unexpectedly while executing this task.\n"
    )
    values: dict[str, object] = {
        "jobs": [failed_job(output)], "workers": [worker], "failures": FailureGroups([task], 1, 1)
    }  # fmt: skip
    return SessionFacts(**{**values, **more})  # type: ignore[arg-type]


def crash_example(sign: str, headline: str) -> Example:
    stack = f'{sign}\n\nStack (most recent call first):\n  File "/app/model.py", line 12 in forward\n'
    return Example(facts=death_facts(dead_example_worker(stderr=stack)), headline=headline)
