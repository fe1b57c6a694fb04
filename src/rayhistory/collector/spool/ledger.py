"""Ledger: event counts per session, stored beside the spool so that they survive a restart.

It counts events that have left the spool. Events in segments are counted from the segments. An uploaded segment is
listed by name before it is deleted, so that a crash does not count it twice. The name stays listed until the packs have
dropped the segment's stream: they drop only streams of listed segments.
"""

import logging
import threading

import msgspec

from rayhistory.collector.spool.private_directory import PrivateDirectory

log = logging.getLogger(__name__)

LEDGER_FILE = "counts.json"
_MAX_SESSIONS = 32
_MAX_UPLOADED_SEGMENTS = 256  # a bound, because they are never forgotten where there are no packs


class LedgerEntry(msgspec.Struct, omit_defaults=True):
    """Numbers of events of one session that this collector received, stored and lost."""

    received: int = 0
    stored: int = 0
    quarantined_before: int = msgspec.field(default=0, name="bad_before")
    """The total of quarantined events when the session began."""
    lost_before: int = 0
    """The total of lost events when the session began."""
    sealed: bool = False
    ended: bool = False
    """True if this spool's collector wrote the session's end record.

    It may remove that record if the session continues.
    """
    late: int = 0
    """Events stored after the session was sealed."""
    uploaded: list[int] = msgspec.field(default_factory=list, name="confirmed")
    """Segments whose objects are all stored, and whose streams may still be in packs."""


class _LedgerFile(msgspec.Struct, omit_defaults=True):
    last_created: int = 0
    quarantined: int = msgspec.field(default=0, name="bad")
    lost: int = 0
    sessions: dict[str, LedgerEntry] = {}


def read_sessions(data: bytes) -> set[str]:
    """Return the sessions in a ledger's file; none if it is damaged."""
    try:
        return set(msgspec.json.decode(data, type=_LedgerFile).sessions)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return set()


class Ledger:
    def __init__(self, directory: PrivateDirectory) -> None:
        self._directory = directory
        self._file = _LedgerFile()
        self._lock = threading.Lock()
        self._has_unsaved_changes = False
        self._quarantined_now = self._lost_now = 0
        self._quarantined_earlier = self._lost_earlier = 0

    def load(self) -> None:
        """Read the counts of earlier processes. If the file is damaged, only the counts are lost.

        Sessions that this process has added before the file could be read are kept.
        """
        try:
            file = msgspec.json.decode(self._directory.read(LEDGER_FILE), type=_LedgerFile)
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            extra = {"path": str(self._directory.path / LEDGER_FILE), "reason": str(error)}
            log.warning("cannot read event counts of the spool, counting from zero", extra=extra)
            return
        with self._lock:
            begun, self._file = self._file.sessions, file
            for session, now in begun.items():
                entry = self._entry(session)
                entry.ended = entry.ended or entry.sealed or now.ended
                entry.sealed = now.sealed
            self._quarantined_earlier, self._lost_earlier = file.quarantined, file.lost

    @property
    def last_created(self) -> int:
        """The creation time of the newest segment, which is part of its name."""
        return self._file.last_created

    def begin(self, session: str) -> None:
        """Start to count quarantined and lost data for this session."""
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
        """Set the numbers of quarantined and lost events of this process; return whether the file must be saved."""
        file = self._file
        changed = (quarantined, lost) != (self._quarantined_now, self._lost_now)
        self._quarantined_now, self._lost_now = quarantined, lost
        file.quarantined, file.lost = self._quarantined_earlier + quarantined, self._lost_earlier + lost
        return changed or self._has_unsaved_changes

    def record_upload(self, session: str, created_ns: int, *, received: int, stored: int, complete: bool) -> None:
        """Count the events of an uploaded segment.

        `complete` is False if some of its events could not be read. Then the segment is not listed as uploaded, because
        packs may still have these events.
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
        """Remove uploaded segments whose streams are no longer in packs."""
        with self._lock:
            if segments and (entry := self._file.sessions.get(session)):
                entry.uploaded = [each for each in entry.uploaded if each not in segments]

    def set_sealed(self, session: str) -> None:
        """Count events that are stored from now on as late."""
        with self._lock:
            self._entry(session).sealed = True

    def reopen(self, session: str) -> None:
        """Record that the session continues, even if it was sealed."""
        with self._lock:
            entry = self._entry(session)
            entry.ended = entry.ended or entry.sealed  # the first release recorded only the seal
            entry.sealed = False
            self._has_unsaved_changes = True

    def set_ended(self, session: str, *, ended: bool) -> None:
        with self._lock:
            self._entry(session).ended = ended

    def has_ended(self, session: str) -> bool:
        entry = self._file.sessions.get(session)
        return entry is not None and entry.ended

    def open_sessions(self) -> list[str]:
        """Return sessions that are not sealed, the latest first."""
        with self._lock:
            return [name for name, entry in reversed(self._file.sessions.items()) if not entry.sealed]

    def is_sealed(self, session: str) -> bool:
        entry = self._file.sessions.get(session)
        return entry is not None and entry.sealed

    @property
    def sessions(self) -> set[str]:
        return set(self._file.sessions)

    def has_seen(self, session: str) -> bool:
        return session in self._file.sessions

    def record_created(self, created_ns: int) -> None:
        self._file.last_created = max(self._file.last_created, created_ns)

    def counts(self, session: str) -> tuple[int, int, int, int, int]:
        """Return the counts of received, stored, quarantined, lost and late events.

        Received and stored events are those of this session that have left the spool. Quarantined and lost events are
        those of all sessions since this session began, because most of them have no readable session.
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
        """Write the file atomically and sync it.

        After a failure, `record_totals` returns True, so that the caller saves again.
        """
        with self._lock:
            data = msgspec.json.encode(self._file)
            self._has_unsaved_changes = False
        try:
            self._directory.write(LEDGER_FILE, data, sync=True)
        except OSError:
            self._has_unsaved_changes = True
            raise
