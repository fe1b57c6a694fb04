"""Whole error messages of tasks.

Ray's events have the last 500 characters of a task's error, often without the frame of the task itself. If the error
ended a driver, the driver's output has all of it.
"""

import msgspec

from rayhistory.diagnosis.fingerprints import normalized
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.diagnosis.tracebacks import DIRECT_CAUSE, chain_ends, last_traceback, own_output, plain_text
from rayhistory.index.query.failure_groups import FailureGroup

_START = "User exception:\n"
_REMOTE = "ray::"
_TAIL_CHARS = 200
"""Two errors count as the same if their last 200 characters are equal, apart from ids, numbers and addresses."""


class _DriverError(msgspec.Struct, frozen=True):
    """The error that ended a driver, with the end of each exception of its chain."""

    text: str
    ends: list[tuple[int, str]]


def with_whole_messages(facts: SessionFacts) -> SessionFacts:
    """Replace each truncated error message with the whole text, if the driver of the same job printed it."""
    errors: dict[str, list[_DriverError]] = {}
    for job in facts.jobs:
        if job.status == "FAILED" and (output := job.output or job.message):
            errors.setdefault(job.job_id, []).append(_driver_error(output))
    groups = [_whole(group, errors.get(group.job_id, [])) for group in facts.failures.groups]
    failures = msgspec.structs.replace(facts.failures, groups=groups)
    return msgspec.structs.replace(facts, failures=failures)


def _driver_error(output: str) -> _DriverError:
    text = last_traceback(own_output(output))
    return _DriverError(text, [(end, normalized(text[:end][-4 * _TAIL_CHARS :].rstrip())) for end in chain_ends(text)])


def _remote_start(text: str, end: int) -> int:
    """Return where the part of a task begins, with the exceptions that its last one was raised from."""
    start = text.rfind(_REMOTE, 0, end)
    while start >= 0 and text[:start].rstrip().endswith(DIRECT_CAUSE) and text.rfind(_REMOTE, 0, start) >= 0:
        start = text.rfind(_REMOTE, 0, start)
    return start


def _whole(group: FailureGroup, errors: list[_DriverError]) -> FailureGroup:
    text = plain_text(group.message)
    if not text.startswith(_START) or text.startswith(_START + _REMOTE):
        return group
    tail = normalized(text.removeprefix(_START).rstrip()[-_TAIL_CHARS:])[1:]  # the first number may be half a number
    for error in errors:
        end = next((end for end, last in reversed(error.ends) if last.endswith(tail)), None)
        if end is None:
            continue
        start = error.text.find(f"{_REMOTE}{group.function}(", 0, end)
        start = _remote_start(error.text, end) if start < 0 else start
        if start >= 0:
            return msgspec.structs.replace(group, message=_START + error.text[start:end].rstrip())
    return group
