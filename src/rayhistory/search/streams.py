"""The stream of a log file, by its name: output, errors, or other logs."""

import re

_SUFFIX = re.compile(r"\.(out|err|log)(?:\.[0-9]{1,6})?\Z")


def stream_of(path: str) -> str | None:
    """Return `out`, `err` or `log`; None if the name has no stream. Rotated files have the same stream."""
    match = _SUFFIX.search(path)
    return match[1] if match else None
