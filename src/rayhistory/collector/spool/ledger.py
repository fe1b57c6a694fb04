"""Ledger: counts per session, kept beside the spool so that they survive a restart.

It has only events that have left the spool; the events in segments are counted from the segments. An uploaded
segment is in the ledger, by name, before it is deleted, so that a crash in between counts nothing twice. The name
stays until the packs have dropped the segment's stream, because they may only drop what is uploaded.
"""

import logging
import os
import threading
from pathlib import Path

import msgspec

from rayhistory.collector.spool.segment import sync_directory

log = logging.getLogger(__name__)

_MAX_SESSIONS = 32
_MAX_UPLOADED_SEGMENTS = 256  # a bound, because they are never forgotten where there are no packs


class LedgerEntry(msgspec.Struct, omit_defaults=True):
    """Counts of one session."""

    received: int = 0
    stored: int = 0
    quarantined_before: int = msgspec.field(default=0, name="bad_before")
    """Quarantined total when the session began."""
    lost_before: int = 0
    """Lost total when the session began."""
    sealed: bool = False
    late: int = 0
    """Events stored after the session was sealed."""
    uploaded: list[int] = msgspec.field(default_factory=list, name="confirmed")
    """Segments whose objects are all stored, and whose streams may still be in packs."""


class _LedgerFile(msgspec.Struct, omit_defaults=True):
    last_created: int = 0
    quarantined: int = msgspec.field(default=0, name="bad")
    lost: int = 0
    sessions: dict[str, LedgerEntry] = {}


class Ledger:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _LedgerFile()
        self._lock = threading.Lock()
        self._quarantined_now = self._lost_now = 0
        self._quarantined_earlier = self._lost_earlier = 0

    def load(self) -> None:
        """Read the counts of earlier processes. A damaged file loses them and nothing else."""
        try:
            self._file = msgspec.json.decode(self.path.read_bytes(), type=_LedgerFile)
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("cannot read ledger, counting from zero", extra={"path": str(self.path), "reason": str(error)})
        self._quarantined_earlier, self._lost_earlier = self._file.quarantined, self._file.lost

    @property
    def last_created(self) -> int:
        """The highest creation time that a segment was named after."""
        return self._file.last_created

    def begin(self, session: str) -> None:
        """Count quarantined and lost data for this session from now on."""
        with self._lock:
            self._entry(session)

    def _entry(self, session: str) -> LedgerEntry:
        file = self._file
        if session not in file.sessions:
            file.sessions[session] = LedgerEntry(quarantined_before=file.quarantined, lost_before=file.lost)
            for name in list(file.sessions)[:-_MAX_SESSIONS]:
                del file.sessions[name]
        return file.sessions[session]

    def record_totals(self, *, quarantined: int, lost: int) -> bool:
        """Set the totals of this process; return whether they have changed."""
        file = self._file
        changed = (quarantined, lost) != (self._quarantined_now, self._lost_now)
        self._quarantined_now, self._lost_now = quarantined, lost
        file.quarantined, file.lost = self._quarantined_earlier + quarantined, self._lost_earlier + lost
        return changed

    def record_upload(self, session: str, created_ns: int, *, received: int, stored: int, complete: bool) -> None:
        """Count the events of an uploaded segment.

        A segment that was not uploaded completely is not listed as uploaded: the packs may have more of it.
        """
        with self._lock:
            entry = self._entry(session)
            entry.received += received
            entry.stored += stored
            entry.late += received if entry.sealed else 0
            if complete:
                entry.uploaded = [*entry.uploaded, created_ns][-_MAX_UPLOADED_SEGMENTS:]
        self.save()

    def uploaded_segments(self, session: str) -> set[int]:
        entry = self._file.sessions.get(session)
        return set(entry.uploaded) if entry else set()

    def forget_uploaded(self, session: str, segments: set[int]) -> None:
        """Remove uploaded segments whose streams are not in packs any more."""
        with self._lock:
            if segments and (entry := self._file.sessions.get(session)):
                entry.uploaded = [each for each in entry.uploaded if each not in segments]

    def set_sealed(self, session: str, *, sealed: bool) -> None:
        """Count events that are stored from now on as late, or stop doing so."""
        with self._lock:
            self._entry(session).sealed = sealed

    def is_sealed(self, session: str) -> bool:
        entry = self._file.sessions.get(session)
        return entry is not None and entry.sealed

    def has_seen(self, session: str) -> bool:
        return session in self._file.sessions

    def record_created(self, created_ns: int) -> None:
        self._file.last_created = max(self._file.last_created, created_ns)

    def counts(self, session: str) -> tuple[int, int, int, int, int]:
        """Return received, stored, quarantined, lost and late.

        Received and stored cover events that have left the spool. Quarantined and lost count from the session's begin.
        """
        file, entry = self._file, self._file.sessions.get(session, LedgerEntry())
        return (
            entry.received,
            entry.stored,
            file.quarantined - entry.quarantined_before,
            file.lost - entry.lost_before,
            entry.late,
        )

    def save(self) -> None:
        """Write the file atomically and sync it."""
        with self._lock:
            data = msgspec.json.encode(self._file)
        temporary = self.path.with_suffix(".half")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(self.path)
        sync_directory(self.path.parent)
