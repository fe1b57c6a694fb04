"""The small JSON objects that say when a session began, that it ended well, and what each node sent."""

from typing import Annotated, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=2**63 // 10**6)]
"""Since 1970; as nanoseconds, it fits into 64 bits."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


LARGEST_RECORD = 16 << 20
"""Bytes: no record of ours has so many, and more than that is not read of what stands in the place of one."""


def read_record(data: bytes, kind: type[T]) -> T | None:
    """What a small object of JSON says; None when it cannot be read, for who knows who wrote it."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class StartRecord(msgspec.Struct, omit_defaults=True):
    """`start.json`: written by the head's collector as soon as it knows the session."""

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
    format: int = 1


class EndRecord(msgspec.Struct, omit_defaults=True):
    """`end.json`: its presence means a clean end, or that nothing more is known of what went on."""

    ended_ms: Milliseconds
    reason: str = ""
    open: bool = False
    """What is kept is a look at a session that went on."""
    format: int = 1


class VanishedRecord(msgspec.Struct, omit_defaults=True):
    """`vanished.json`: the session had vanished when it was copied here, where `alive` is as young as the copy."""

    last_ms: Milliseconds
    format: int = 1


class Owner(msgspec.Struct, frozen=True, order=True):
    kind: str
    name: str


class Tombstone(msgspec.Struct, omit_defaults=True):
    """The session is being removed. It says what the metadata keys said, which go first."""

    made_ms: int
    reason: str = ""
    owners: list[Owner] = []
    format: int = 1


class NodeSeal(msgspec.Struct, omit_defaults=True):
    """`seals/…/<node>.json`: what one node's collector has counted, written when it ends."""

    node_id: str
    sealed_ms: Milliseconds
    received: Count = 0
    stored: Count = 0
    set_aside: Count = 0
    dropped: Count = 0
    late: Count = 0
    """Events that reached the store after the node had been sealed before."""
    left_behind: list[str] = []
    format: int = 1
