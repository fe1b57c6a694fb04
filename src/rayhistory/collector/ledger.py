"""What has been counted of each session, kept beside the spool so that a restart does not begin at zero.

What is still in the spool counts itself: here is only what has left it. The entry is on disk before a confirmed
segment is deleted, with the segment's name, so that a crash between the two counts nothing twice. The name stays until
the packs, too, have forgotten the segment: only what is confirmed may be forgotten there.
"""

import logging
import os
import threading
from pathlib import Path

import msgspec

from rayhistory.collector.segment import sync_directory

log = logging.getLogger(__name__)

_MOST_SESSIONS = 32
_MOST_CONFIRMED = 256  # without packs nobody ever settles them


class Entry(msgspec.Struct, omit_defaults=True):
    received: int = 0
    stored: int = 0
    bad_before: int = 0
    lost_before: int = 0
    sealed: bool = False
    late: int = 0
    """Events that reached the store after the seal."""
    confirmed: list[int] = []
    """Segments whose objects are all in the store, and of which something else may be left."""


class _Book(msgspec.Struct, omit_defaults=True):
    last_created: int = 0
    bad: int = 0
    lost: int = 0
    sessions: dict[str, Entry] = {}


class Ledger:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._book = _Book()
        self._lock = threading.Lock()
        self._bad_here = self._lost_here = 0
        self._bad_earlier = self._lost_earlier = 0

    def load(self) -> None:
        """A damaged file costs the counts of the past, and nothing else."""
        try:
            self._book = msgspec.json.decode(self.path.read_bytes(), type=_Book)
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("earlier counts cannot be read", extra={"path": str(self.path), "reason": str(error)})
        self._bad_earlier, self._lost_earlier = self._book.bad, self._book.lost

    @property
    def last_created(self) -> int:
        return self._book.last_created

    def begin(self, session: str) -> None:
        """From now on, what cannot be understood is counted with this session."""
        with self._lock:
            self._entry(session)

    def _entry(self, session: str) -> Entry:
        book = self._book
        if session not in book.sessions:
            book.sessions[session] = Entry(bad_before=book.bad, lost_before=book.lost)
            for name in list(book.sessions)[:-_MOST_SESSIONS]:
                del book.sessions[name]
        return book.sessions[session]

    def note(self, *, bad: int, lost: int) -> bool:
        """The totals of this process; True when they are news."""
        book = self._book
        news = (bad, lost) != (self._bad_here, self._lost_here)
        self._bad_here, self._lost_here = bad, lost
        book.bad, book.lost = self._bad_earlier + bad, self._lost_earlier + lost
        return news

    def confirm(self, session: str, created_ns: int, *, received: int, stored: int, whole: bool) -> None:
        """Of a segment that is not there as a whole, there may be more in the packs."""
        with self._lock:
            entry = self._entry(session)
            entry.received += received
            entry.stored += stored
            entry.late += received if entry.sealed else 0
            if whole:
                entry.confirmed = [*entry.confirmed, created_ns][-_MOST_CONFIRMED:]
        self.save()

    def confirmed(self, session: str) -> set[int]:
        entry = self._book.sessions.get(session)
        return set(entry.confirmed) if entry else set()

    def settle(self, session: str, segments: set[int]) -> None:
        """Nothing but their objects is left of these."""
        with self._lock:
            if segments and (entry := self._book.sessions.get(session)):
                entry.confirmed = [each for each in entry.confirmed if each not in segments]

    def seal(self, session: str, *, sealed: bool) -> None:
        """From now on, what reaches the store is late, or is not."""
        with self._lock:
            self._entry(session).sealed = sealed

    def is_sealed(self, session: str) -> bool:
        entry = self._book.sessions.get(session)
        return entry is not None and entry.sealed

    def knows(self, session: str) -> bool:
        return session in self._book.sessions

    def created(self, created_ns: int) -> None:
        self._book.last_created = max(self._book.last_created, created_ns)

    def of(self, session: str) -> tuple[int, int, int, int, int]:
        """Received and stored of what has left the spool; set aside and lost since the session began; late."""
        book, entry = self._book, self._book.sessions.get(session, Entry())
        return entry.received, entry.stored, book.bad - entry.bad_before, book.lost - entry.lost_before, entry.late

    def save(self) -> None:
        with self._lock:
            data = msgspec.json.encode(self._book)
        half = self.path.with_suffix(".half")
        descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        half.replace(self.path)
        sync_directory(self.path.parent)
