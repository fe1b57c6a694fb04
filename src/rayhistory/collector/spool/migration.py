"""Move the data of the spool that release 0.1.0 left in Ray's temporary directory.

Jobs can write to that directory. So its list of sessions is trusted only while the new spool has no sessions. Later,
only segments of known sessions are moved.
"""

import logging
import os
from contextlib import suppress

from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.collector.spool.recovery import find_segments, lock_spool
from rayhistory.collector.spool.segment import Segment
from rayhistory.errors import UsageError

log = logging.getLogger(__name__)

_COUNTS = "counts.json"
_FOLDERS = ("exports", "leftovers", "set-aside")
_COPY_BYTES = 1 << 20


def take_over(old: PrivateDirectory, new: PrivateDirectory, known_sessions: set[str]) -> None:
    """Move the files of an old spool to a new one, and sync each. Log a failure, and leave the remaining files."""
    try:
        lock = lock_spool(old)
    except (OSError, UsageError) as error:
        if not isinstance(error, FileNotFoundError):
            log.warning(
                "cannot read the old spool directory, leaving its data there",
                extra={"path": str(old.path), "reason": str(error)},
            )
        return
    try:
        _move_all(old, new, known_sessions)
    except OSError as error:
        log.warning(
            "cannot move all data from the old spool directory, leaving the rest there",
            extra={"path": str(old.path), "reason": str(error)},
        )
    finally:
        os.close(lock)
        old.close()


def _move_all(old: PrivateDirectory, new: PrivateDirectory, known_sessions: set[str]) -> None:
    is_first = not new.exists(_COUNTS)
    segments = [each for each in find_segments(old) if is_first or each.session in known_sessions]
    for segment in segments:
        _move_segment(segment, new)
    if is_first:
        for name in _FOLDERS:
            _move_folder(old.folder(name), new.folder(name))
        if old.exists(_COUNTS):  # last: without it, the next start repeats what is not done
            _move(old, new, _COUNTS)
    if segments:
        log.info("moved data from the old spool directory", extra={"path": str(old.path), "segments": len(segments)})


def _move_segment(segment: Segment, new: PrivateDirectory) -> None:
    folder = new.folder(segment.session)
    folder.make()
    _move(segment.folder, folder, segment.name)
    with suppress(OSError):  # the last one
        segment.folder.remove()


def _move_folder(old: PrivateDirectory, new: PrivateDirectory) -> None:
    try:
        names = old.names()
    except FileNotFoundError:
        return
    new.make()
    for name in names:
        _move(old, new, name)


def _move(old: PrivateDirectory, new: PrivateDirectory, name: str) -> None:
    """Move a file between file systems: copy it, sync the copy, and delete the original."""
    half = f"{name}.half"
    with old.open(name) as source, open(new.create(half), "wb") as target:  # noqa: PTH123 - there is only the descriptor
        while data := source.read(_COPY_BYTES):
            target.write(data)
        target.flush()
        os.fsync(target.fileno())
    new.rename(half, name)
    new.sync()
    old.unlink(name)
