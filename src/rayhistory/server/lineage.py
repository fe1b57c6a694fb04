"""The tree of calls in the shape of Ray's summary by lineage."""

import msgspec

from rayhistory.index.lineage import Entry


class Link(msgspec.Struct, frozen=True):
    type: str
    id: str


class Node(msgspec.Struct):
    name: str
    key: str
    type: str
    timestamp: int | None = None
    state_counts: dict[str, int] = {}
    children: list["Node"] = []
    link: Link | None = None


def nodes(entries: list[Entry]) -> list[Node]:
    return [
        Node(one.name, one.key, one.type, one.timestamp, one.state_counts, nodes(one.children), _link(one))
        for one in entries
    ]


def _link(entry: Entry) -> Link | None:
    if entry.type == "GROUP":
        return None
    if entry.type == "ACTOR":
        return Link("actor", entry.key.removeprefix("actor:"))
    return Link("task", entry.key)
