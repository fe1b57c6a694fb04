"""Records: small JSON objects about the start, end and completeness of a session."""

from typing import Annotated, TypeVar

import msgspec

from rayhistory.utc import MAX_CLOCK_SKEW_S

T = TypeVar("T", bound=msgspec.Struct)

Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=2**63 // 10**6)]
"""Milliseconds since 1970. The limit keeps nanoseconds within 64 bits."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


MAX_RECORD_BYTES = 16 << 20
"""Maximum size of a record. Larger objects are rejected; real records are far smaller."""
_RESUMED_AFTER_S = 10.0
"""A heartbeat that is this much newer than the end record voids it. A copy writes both at nearly the same time."""


def read_record(data: bytes, kind: type[T]) -> T | None:
    """Parse a record; return None if it is malformed, because stored objects are untrusted."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class StartRecord(msgspec.Struct, omit_defaults=True):
    """`start.json`: written by the head's collector when it finds the session, or by an import or a snapshot."""

    namespace: str
    cluster: str
    session: str
    started_ms: Milliseconds
    node_id: str = ""
    owner_kind: str | None = None
    owner_name: str | None = None
    ray_version: str | None = None
    dashboard_address: str | None = None
    collector_version: str = ""
    stored_ms: Milliseconds | None = None
    """Time when the store first had the record, by the store's clock. Copies preserve it, unlike the modification time.
    """
    format: int = 1


class EndRecord(msgspec.Struct, omit_defaults=True):
    """`end.json`: the session ended cleanly, or is a snapshot of a session that continued."""

    ended_ms: Milliseconds
    reason: str = ""
    open: bool = False
    """True for a snapshot of a session that continued."""
    stored_ms: Milliseconds | None = None
    """As in `StartRecord`. Only copies have it; otherwise the object's modification time is used."""
    format: int = 1


class Closing(msgspec.Struct, frozen=True):
    """The end of a session, from which an index infers final states. It is stored in the manifest."""

    ns: int
    clean: bool
    open: bool = False
    """True if the session continued after its last record, so that unfinished tasks and actors keep their states."""


class VanishedRecord(msgspec.Struct, omit_defaults=True):
    """`vanished.json`: the session had vanished before it was copied.

    It is needed because the `alive` object of a copy is new.
    """

    last_ms: Milliseconds
    format: int = 1


class Owner(msgspec.Struct, frozen=True, order=True):
    kind: str
    name: str


class Tombstone(msgspec.Struct, omit_defaults=True):
    """Marks a session that is being removed.

    It lists the owners, because the metadata keys with their names are deleted first.
    """

    made_ms: int
    reason: str = ""
    owners: list[Owner] = []
    format: int = 1


def bounded_end(record: EndRecord, modified: float | None) -> EndRecord:
    """Return the end record. If its end is in the store's future, replace the end by the time of storing.

    Only a wrong clock can report such an end.
    """
    stored_ms = int(modified * 1000) if modified else None
    if record.stored_ms is not None and (stored_ms is None or record.stored_ms < stored_ms):
        stored_ms = record.stored_ms
    latest_ms = None if stored_ms is None else stored_ms + int(MAX_CLOCK_SKEW_S * 1000)
    is_future = latest_ms is not None and record.ended_ms > latest_ms
    return msgspec.structs.replace(record, ended_ms=stored_ms if is_future else record.ended_ms, stored_ms=stored_ms)


def is_resumed(heartbeat: float | None, end_stored: float | None) -> bool:
    """Return whether a head resumed the session in a new pod after its end record, by the store's clock.

    A collector writes a heartbeat beside the end record of another collector only if Ray runs (`SessionRecord`).
    """
    return heartbeat is not None and end_stored is not None and heartbeat > end_stored + _RESUMED_AFTER_S


class NodeSeal(msgspec.Struct, omit_defaults=True):
    """`seals/…/<node>.json`: the event counts of one node's collector, written at the end."""

    node_id: str
    sealed_ms: Milliseconds
    received: Count = 0
    stored: Count = 0
    set_aside: Count = 0
    dropped: Count = 0
    late: Count = 0
    """Events that reached the store after an earlier seal of this node."""
    left_behind: list[str] = []
    format: int = 1
