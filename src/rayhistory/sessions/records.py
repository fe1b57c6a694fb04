"""Records: small JSON objects about the start, end and completeness of a session."""

from typing import Annotated, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=2**63 // 10**6)]
"""Since the epoch. The limit keeps nanoseconds within 64 bits."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


MAX_RECORD_BYTES = 16 << 20
"""Our records are far smaller. Longer objects are read only up to here, and then rejected."""


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
    """When the store first had the record, by the store's clock. Unlike its modification time, copies keep it."""
    format: int = 1


class EndRecord(msgspec.Struct, omit_defaults=True):
    """`end.json`: the session ended cleanly, or is a snapshot of a session that went on."""

    ended_ms: Milliseconds
    reason: str = ""
    open: bool = False
    """True for a snapshot of a session that went on."""
    stored_ms: Milliseconds | None = None
    """As in `StartRecord`. Only copies have it: elsewhere it is the object's modification time."""
    format: int = 1


class Closing(msgspec.Struct, frozen=True):
    """The end of a session as its index infers it; part of the manifest."""

    ns: int
    clean: bool
    open: bool = False
    """The session went on after its last record: unfinished tasks and actors keep their states."""


class VanishedRecord(msgspec.Struct, omit_defaults=True):
    """`vanished.json`: the session had vanished before it was copied.

    The `alive` object of a copy is no older than the copy.
    """

    last_ms: Milliseconds
    format: int = 1


class Owner(msgspec.Struct, frozen=True, order=True):
    kind: str
    name: str


class Tombstone(msgspec.Struct, omit_defaults=True):
    """Marks a session as being removed. Lists its owners, because the metadata keys that name them go first."""

    made_ms: int
    reason: str = ""
    owners: list[Owner] = []
    format: int = 1


class NodeSeal(msgspec.Struct, omit_defaults=True):
    """`seals/…/<node>.json`: the counts of one node's collector, written when it ends."""

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
