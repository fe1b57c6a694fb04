"""The lineage of tasks in the shape of Ray's nested task summary."""

import msgspec

from rayhistory.index.query.lineage import LineageNode


class SummaryLink(msgspec.Struct, frozen=True):
    type: str
    id: str


class NestedTaskSummary(msgspec.Struct):
    name: str
    key: str
    type: str
    timestamp: int | None = None
    state_counts: dict[str, int] = {}
    children: list["NestedTaskSummary"] = []
    link: SummaryLink | None = None


def nested_summaries(nodes: list[LineageNode]) -> list[NestedTaskSummary]:
    return [
        NestedTaskSummary(
            node.name,
            node.key,
            node.type,
            node.timestamp,
            node.state_counts,
            nested_summaries(node.children),
            _link(node),
        )
        for node in nodes
    ]


def _link(node: LineageNode) -> SummaryLink | None:
    if node.type == "GROUP":
        return None
    if node.type == "ACTOR":
        return SummaryLink("actor", node.key.removeprefix("actor:"))
    return SummaryLink("task", node.key)
