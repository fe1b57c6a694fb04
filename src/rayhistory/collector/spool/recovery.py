"""What an earlier process left in the spool, whatever state it is in; and that there is no other process now."""

import fcntl
import logging
import os
from pathlib import Path

from rayhistory.collector.segment import Segment
from rayhistory.errors import UsageError
from rayhistory.layout.session import is_session_name

log = logging.getLogger(__name__)


def locked(path: Path) -> int:
    """Two collectors in one spool would upload and delete each other's open files."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(
            f"another collector uses the spool {path.parent}; "
            "give this one its own --event-data-dir or --ray-cluster-name"
        ) from None
    return descriptor


def left_over(directory: Path) -> list[Segment]:
    found: list[Segment] = []
    for folder in sorted(directory.iterdir()):
        if not is_session_name(folder.name):
            continue
        segments = []
        for path in _entries(folder):
            try:
                if segment := Segment.found(path):
                    segments.append(segment)
            except OSError as error:
                log.warning("part of the spool cannot be read", extra={"path": str(path), "reason": str(error)})
        found += sorted(segments, key=lambda segment: segment.created_ns)
    return found


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        log.warning("part of the spool cannot be read", extra={"path": str(folder), "reason": str(error)})
        return []
