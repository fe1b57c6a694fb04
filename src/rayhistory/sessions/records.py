"""Records: small JSON objects about the start, end and completeness of a session."""

from typing import Annotated, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=2**63 // 10**6)]
"""Milliseconds since 1970. The limit keeps nanoseconds within 64 bits."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


MAX_RECORD_BYTES = 16 << 20
"""Larger objects are rejected. Real records are far smaller."""


def read_record(data: bytes, kind: type[T]) -> T | None:
    """Parse a record; return None if it is malformed, because stored objects are untrusted."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class StartRecord(msgspec.Struct, omit_defaults=True):
    """`start.json`: written by the head's collector when it finds the session."""

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
    """When the store first had the record, by the store's clock. Copies preserve it, unlike the modification time."""
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
    """The end of a session that its index uses to infer states. Part of the manifest."""

    ns: int
    clean: bool
    open: bool = False
    """The session continued after its last record, so unfinished tasks and actors keep their states."""


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
