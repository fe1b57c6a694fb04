"""Helpers for rules about exceptions. They match the innermost exception of a task, actor or driver."""

import re
from collections.abc import Callable

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.findings import Counts, Evidence
from rayhistory.diagnosis.fingerprints import source_file
from rayhistory.diagnosis.headlines import frame_place, one_line, plural, things
from rayhistory.diagnosis.rules.rule import Group, Match, Words
from rayhistory.diagnosis.session_facts import JobFacts, SessionFacts
from rayhistory.diagnosis.tracebacks import (
    RaisedException,
    cut_lines,
    direct_causes,
    excerpt,
    is_coroutine_frame,
    last_traceback,
    own_output,
    parse_exception,
    plain_text,
)
from rayhistory.index.query.failure_groups import FailureGroup, FailureGroups

_NAMED = re.compile(r"^ray::([^\n]{1,200})\(\) \(pid=", re.MULTILINE)
_RAISING_ERRORS = ("TASK_EXECUTION_EXCEPTION", "")
_MAX_TRACEBACK, _MAX_LINES = 8_000, 100

Predicate = Callable[[RaisedException, str], bool]


def raised_in(failure: Failure) -> RaisedException | None:
    """Return the exception that a task, an actor or a driver raised; None if it failed in another way."""
    if failure.kind == "job":
        return parse_exception(last_traceback(own_output(failure.text)))
    if failure.kind == "tasks" and failure.error_type in _RAISING_ERRORS:
        return failure.exception
    if failure.kind == "actor" and failure.actor and failure.actor.cause == "creation_task_failure_context":
        return failure.exception
    return None


def match_exception(failure: Failure, applies: Predicate, *, anywhere: str = "") -> Match | None:
    """Match a failure by its exception. `anywhere` is a pattern for driver output without a complete traceback."""
    raised = raised_in(failure)
    text = own_output(failure.text) if failure.kind == "job" else plain_text(failure.text)
    for each in (raised, *_direct_causes(failure)) if raised is not None else ():
        if applies(each, text):
            return Match(group=_group(failure, each), evidence=(traceback_of(failure),), cause=str(each))
    if failure.kind == "job" and anywhere and (found := re.search(anywhere, text[-20_000:])):
        return Match(
            group=f"{failure.fingerprint} {source_file(failure.text)}",
            evidence=(traceback_of(failure),),
            cause=found[0],
        )
    return None


def _direct_causes(failure: Failure) -> list[RaisedException]:
    """Return the exceptions that an exception was raised from (`raise … from error`), the last one first."""
    text = own_output(failure.text) if failure.kind == "job" else plain_text(failure.text)
    return [raised for part in direct_causes(text) if (raised := parse_exception(part))]


def _group(failure: Failure, raised: RaisedException) -> str:
    function = "" if raised.frame and not is_coroutine_frame(raised.frame) else failure.function
    return f"{failure.job_id} {failure.fingerprint} {source_file(failure.text)} {raised.short_type} {function}"


def traceback_of(failure: Failure) -> Evidence:
    """Return the error of a failure as evidence, shortened."""
    text = last_traceback(own_output(failure.text)) if failure.kind == "job" else plain_text(failure.text)
    return failure.evidence(excerpt(cut_lines(text), _MAX_LINES, _MAX_TRACEBACK))


def subject(group: Group) -> str:
    """Return where an exception was raised: the driver of a job, or the number of tasks of a function."""
    first = group.first
    if first.kind == "job":
        return f"The driver of job {first.id}"
    count = sum(root.count for root in group.roots if root.kind == first.kind)
    if first.tasks and first.tasks.type == "ACTOR_CREATION_TASK":
        name = first.function.removesuffix(".__init__")
        return f"Actor {name}" if count == 1 else plural(count, f"{name} actor")
    name = _task_name(first)
    return f"Task {name}" if count == 1 else f"{count:,} {name} tasks"


def _task_name(failure: Failure) -> str:
    """Return the function, or for a private function of a library, the name that the library gave to its task."""
    found = _NAMED.search(plain_text(failure.text)) if failure.function.startswith("_") else None
    return found[1] if found else failure.function


def words(group: Group, problem: str, suggestion: str, several: str = "") -> Words:
    """Describe an exception: where it was raised, and its message. `several` replaces `problem` after a plural."""
    who = subject(group)
    if several and who[0].isdigit():
        problem = several
    raised = raised_in(group.first)
    cause = group.match.cause or str(raised)
    found = next((each for each in (raised, *_direct_causes(group.first)) if each and str(each) == cause), raised)
    place = frame_place(found.frame) if found and found.frame and not is_coroutine_frame(found.frame) else ""
    where = f" ({place})" if place else ""
    return Words(
        headline=one_line(f"{who} {problem}: {cause}{where}"),
        detail=_detail(group),
        suggestion=suggestion,
    )


def _detail(group: Group) -> str:
    followed = things(sum((failure.counts for failure in group.consequences), Counts()))
    return f"Failed because of it: {followed}." if followed else ""


def failed_task(message: str, **more: object) -> FailureGroup:
    """Return a group of one failed task, for examples."""
    values: dict[str, object] = {
        "job_id": "01000000", "error_type": "TASK_EXECUTION_EXCEPTION", "function": "train", "type": "NORMAL_TASK",
        "retried": False, "at_job_end": False, "worker_id": None, "actor_id": None, "node_id": None, "count": 1,
        "first_ms": 1_800_000_001_000, "last_ms": 1_800_000_001_000, "run_ms": 500, "task_id": "ab" * 24, "attempt": 0,
    }  # fmt: skip
    return FailureGroup(**{**values, **more, "message": message})  # type: ignore[arg-type]


def failed_job(output: str, **more: object) -> JobFacts:
    """Return a failed job, for examples."""
    values: dict[str, object] = {
        "job_id": "01000000", "submission_id": "nightly", "status": "FAILED", "exit_code": 1, "output": output,
        "start_ms": 1_800_000_000_000, "end_ms": 1_800_000_002_000, "error_type": "JOB_ENTRYPOINT_COMMAND_ERROR",
    }  # fmt: skip
    return JobFacts(**{**values, **more})  # type: ignore[arg-type]


def session_with_task(message: str, **more: object) -> SessionFacts:
    """Return a session whose job failed because of one task, for examples."""
    groups = FailureGroups([failed_task(message, **more)], 1, 1)
    frames = message.removeprefix("User exception:")
    driver = 'Traceback (most recent call last):\n  File "/app/main.py", line 3, in <module>\n    ray.get(refs)\n'
    raised = f"{driver}ray.exceptions.RayTaskError: ray::train() (pid=4376, ip=10.0.0.7){frames}\n"
    return SessionFacts(jobs=[failed_job(raised)], failures=groups)


def session_with_driver(exception: str, frame: str = 'File "/app/train.py", line 9, in main') -> SessionFacts:
    """Return a session whose driver raised an exception, for examples."""
    text = f"Traceback (most recent call last):\n  {frame}\n    main()\n{exception}\n"
    return SessionFacts(jobs=[failed_job(text)])
