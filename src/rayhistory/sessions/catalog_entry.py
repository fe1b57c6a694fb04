"""One session of the catalog, as the keys in a listing describe it."""

from collections.abc import Iterable

import msgspec

from rayhistory.sessions.keys import ALIVE_RECORD, END_RECORD, START_RECORD, VANISHED_RECORD
from rayhistory.sessions.ref import SessionRef, session_start_time

RUNNING, ENDED, VANISHED = "running", "ended", "vanished"

_MAX_NAME_ERROR_S = 26 * 3600.0
"""Maximum error of the time in a session's name, which is the head's local time. Time zones span 26 hours."""


class CatalogEntry(msgspec.Struct):
    """A session as found in a listing."""

    ref: SessionRef
    recorded: bool = False
    """True if our collector wrote records; KubeRay's collectors write none."""
    alive: float | None = None
    """Time of the last heartbeat, in seconds since the epoch."""
    ended: bool = False
    vanished: bool = False
    """True if there is a vanished record, as in a copy of a vanished session."""
    started_ms: int | None = None
    """The time in the session's name. The start record is more exact."""
    stored: float | None = None
    """The earliest modification time of the keys that make the session visible.

    For imports and copies it is the time in the name of their `first-stored` key, if that is earlier.
    """
    end_stored: float | None = None
    """The modification time of the end record."""
    heartbeat: float | None = None
    """The modification time of the heartbeat object. Unlike `alive`, it never comes from the start record."""
    successor: "CatalogEntry | None" = None
    """For a session without records: the next session of the cluster that has records."""

    @classmethod
    def of(cls, ref: SessionRef) -> "CatalogEntry":
        start = session_start_time(ref.session)
        return cls(ref, started_ms=int(start.timestamp() * 1000) if start else None)

    @property
    def appeared(self) -> float:
        """Return the time when the store first had the session, estimated from the listing without the start record.

        A copy without a `first-stored` key was stored much later. For it, return the time in the session's name, whose
        time zone is unknown.
        """
        named = (self.started_ms or 0) / 1000
        at = named if self.stored is None or 0 < named < self.stored - _MAX_NAME_ERROR_S else self.stored
        return min(at, self.successor.appeared - 1.0) if self.successor else at

    def state(self, now: float, vanished_after: float) -> str:
        if self.ended or not self.recorded:
            return ENDED
        if self.vanished:
            return VANISHED
        return RUNNING if self.alive is not None and now - self.alive < vanished_after else VANISHED

    @property
    def newest_possible(self) -> float:
        """Return the latest time at which the session can have been added to the store."""
        return self.appeared if self.stored is None else self.stored

    def add_key(self, modified: float) -> None:
        self.stored = min(modified, self.stored or modified)

    def add_record(self, record: str, modified: float) -> None:
        self.recorded = True
        if record == START_RECORD:
            self.add_key(modified)
        if record == ALIVE_RECORD:
            self.heartbeat = modified
        if record == ALIVE_RECORD or (record == START_RECORD and self.alive is None):
            self.alive = modified
        elif record == END_RECORD:
            self.ended, self.end_stored = True, modified
        elif record == VANISHED_RECORD:
            self.vanished = True


def set_successors(entries: Iterable[CatalogEntry]) -> None:
    """Order sessions without records, such as old logs that a collector found, before later ones with records.

    Their names tell the order, because both have the local time of one host.
    """
    later: dict[tuple[str, str], CatalogEntry] = {}
    for entry in sorted(entries, key=lambda entry: entry.started_ms or 0, reverse=True):
        cluster = entry.ref.identity[:2]
        if entry.recorded:
            later[cluster] = entry
        else:
            entry.successor = later.get(cluster)
