"""Lock the spool, and find the segments that an earlier collector process left."""

import fcntl
import logging
import os

from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.collector.spool.segment import Segment
from rayhistory.errors import UsageError
from rayhistory.sessions.ref import is_session_name

log = logging.getLogger(__name__)

_LOCK_FILE = "lock"


def lock_spool(directory: PrivateDirectory) -> int:
    """Lock the spool. Two collectors in one spool would delete each other's open segments."""
    descriptor = directory.create(_LOCK_FILE, 0)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(
            f"another collector uses the spool {directory.path}: set another --event-data-dir or --ray-cluster-name "
            "for this one"
        ) from None
    return descriptor


def find_segments(directory: PrivateDirectory) -> list[Segment]:
    """Return all segments below the spool directory, oldest first within each session."""
    found: list[Segment] = []
    for session in filter(is_session_name, directory.names()):
        folder, segments = directory.folder(session), []
        for name in _list_folder(folder):
            try:
                if segment := Segment.find(folder, name):
                    segments.append(segment)
            except OSError as error:
                extra = {"path": str(folder.path / name), "reason": str(error)}
                log.warning("cannot read spool file, skipping it", extra=extra)
        found += sorted(segments, key=lambda segment: segment.created_ns)
    return found


def _list_folder(folder: PrivateDirectory) -> list[str]:
    try:
        return folder.names()
    except OSError as error:
        log.warning("cannot list spool directory, skipping it", extra={"path": str(folder.path), "reason": str(error)})
        return []
