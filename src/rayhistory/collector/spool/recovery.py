"""Lock the spool, and find the segments that an earlier process left in it."""

import fcntl
import logging
import os
from pathlib import Path

from rayhistory.collector.spool.segment import Segment
from rayhistory.errors import UsageError
from rayhistory.sessions.ref import is_session_name

log = logging.getLogger(__name__)


def lock_spool(path: Path) -> int:
    """Lock the spool: two collectors in one spool would upload and delete each other's open segments."""
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


def find_segments(directory: Path) -> list[Segment]:
    """Return all segments below the spool directory, oldest first within each session."""
    found: list[Segment] = []
    for folder in sorted(directory.iterdir()):
        if not is_session_name(folder.name):
            continue
        segments = []
        for path in _list_folder(folder):
            try:
                if segment := Segment.from_path(path):
                    segments.append(segment)
            except OSError as error:
                log.warning("cannot read spool file, skipping", extra={"path": str(path), "reason": str(error)})
        found += sorted(segments, key=lambda segment: segment.created_ns)
    return found


def _list_folder(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        log.warning("cannot list spool directory, skipping", extra={"path": str(folder), "reason": str(error)})
        return []
