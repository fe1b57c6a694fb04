"""Fingerprints of failures: equal for failures with the same cause, across tasks, nodes and runs.

The fingerprint of an exception is made from its type and its last stack frame outside of libraries. The fingerprint of
other errors is made from their text without ids, numbers and addresses.
"""

import hashlib
import re

from rayhistory.diagnosis.tracebacks import WRAPPERS, RaisedException, direct_causes, parse_exception, plain_text

_VARYING = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b|\d+(?:\.\d+)*")
_MAX_CHARS = 300


def normalized(text: str) -> str:
    """Replace the ids, numbers and addresses in a text."""
    return _VARYING.sub("#", text)


def fingerprint(text: str, fallback: str = "") -> str:
    """Return 16 hex digits that identify the cause of an error message."""
    raised = _raised(text)
    if raised is None:
        return _digest(fallback, normalized(plain_text(text)[:_MAX_CHARS]))
    frame = raised.frame
    place = (_file_name(frame.file), frame.function) if frame else ("", "")
    return _digest(raised.short_type, *place)


def _raised(text: str) -> RaisedException | None:
    """Return the exception of a text, or the one that a library wrapped."""
    raised = parse_exception(text)
    if raised is None or raised.short_type not in WRAPPERS:
        return raised
    causes = (parse_exception(part) for part in direct_causes(plain_text(text)))
    return next((cause for cause in causes if cause and cause.short_type not in WRAPPERS), raised)


def source_file(text: str) -> str:
    """Return the file of an exception's last user frame, without the directory of a job's files; or an empty text."""
    raised = _raised(text)
    frame = raised.frame if raised else None
    return re.sub(r"^.*/runtime_resources/working_dir_files/[^/]*/", "", frame.file) if frame else ""


def _file_name(path: str) -> str:
    """Return the name without its directory, which depends on how a job is submitted: with or without its files."""
    return re.split(r"[/\\]", path)[-1]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:16]
