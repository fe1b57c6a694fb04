"""The lineage tree in plain Python, as Ray builds it: the reference for `rayhistory.index.query.lineage`."""

from rayhistory.index.query.query import Row
from rayhistory.server.ray_api.nested_summary import NestedTaskSummary, SummaryLink

_RUNNING = ("RUNNING", "RUNNING_IN_RAY_GET", "RUNNING_IN_RAY_WAIT")
_PENDING = (
    "PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "PENDING_OBJ_STORE_MEM_AVAIL", "PENDING_ARGS_FETCH",
)  # fmt: skip
_MAX_TIMESTAMP = 2**63


def lineage(tasks: list[Row], actors: list[Row], max_depth: int = 200) -> list[NestedTaskSummary]:
    """Return the top-level nodes, with the counts of all their descendants. Deeper nodes are not listed."""
    top = NestedTaskSummary("", "", "", children=_Tree(tasks, actors).roots())
    for node in reversed(_top_down(top)):
        _finish(node)
    _cut_below(top, max_depth)
    return top.children


class _Tree:
    def __init__(self, tasks: list[Row], actors: list[Row]) -> None:
        self._rows = tasks
        self._actors = {row["actor_id"]: row for row in actors}
        self._tasks = {row["task_id"]: row for row in tasks}
        self._creations = {_actor_key(row): row for row in tasks if row["type"] == "ACTOR_CREATION_TASK"}
        self._nodes: dict[str, NestedTaskSummary] = {}
        self._roots: list[NestedTaskSummary] = []

    def roots(self) -> list[NestedTaskSummary]:
        for row in self._rows:
            self._add(row["task_id"])
            counts = self._nodes[row["task_id"]].state_counts
            counts[row["state"]] = counts.get(row["state"], 0) + 1
        return self._roots

    def _add(self, key: str) -> None:
        """Create the node and its ancestors, up to an existing node, the top, or an unknown task."""
        below: NestedTaskSummary | None = None
        while True:
            node = existing = self._nodes.get(key)
            if node is None:
                node = self._create(key)
            if node is None:
                return
            self._nodes[key] = node
            if below is not None:
                node.children.append(below)
            if existing is not None:
                return
            parent_key = self._parent(key)
            if parent_key is None:
                self._roots.append(node)
                return
            below, key = node, parent_key

    def _create(self, key: str) -> NestedTaskSummary | None:
        if task := self._tasks.get(key):
            name = task["name"] or task["func_or_class_name"]
            return NestedTaskSummary(name, key, task["type"], task["creation_time_ms"], link=SummaryLink("task", key))
        if creation := self._creations.get(key):
            actor_id = creation["actor_id"]
            return NestedTaskSummary(self._actor_name(creation), key, "ACTOR", link=SummaryLink("actor", actor_id))
        return None

    def _actor_name(self, creation: Row) -> str:
        actor = self._actors.get(creation["actor_id"])
        if actor is None:
            return str(creation["func_or_class_name"].partition(".")[0])
        return str(actor["repr_name"] or actor["class_name"] or "")

    def _parent(self, key: str) -> str | None:
        """Return the key of the parent; None at the top."""
        task = self._tasks.get(key)
        if task and task["type"] in ("ACTOR_TASK", "ACTOR_CREATION_TASK"):
            return _actor_key(task)
        parent: str | None = (task or self._creations[key])["parent_task_id"]
        return None if parent is None or parent.startswith("f" * 40) else parent


def _actor_key(task: Row) -> str:
    return f"actor:{task['actor_id']}"


def _top_down(top: NestedTaskSummary) -> list[NestedTaskSummary]:
    """Return all nodes, parents first. Iterative, because a chain of calls may be longer than Python's stack."""
    nodes, waiting = [], [top]
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        waiting += node.children
    return nodes


def _cut_below(top: NestedTaskSummary, depth: int) -> None:
    level = [top]
    for _ in range(depth):
        level = [child for node in level for child in node.children]
    for node in level:
        node.children = []


def _finish(node: NestedTaskSummary) -> None:
    by_name: dict[str, list[NestedTaskSummary]] = {}
    for child in node.children:
        by_name.setdefault(child.name, []).append(child)
    node.children = [same[0] if len(same) == 1 else _group(name, same) for name, same in by_name.items()]
    _sum_up(node)


def _group(name: str, children: list[NestedTaskSummary]) -> NestedTaskSummary:
    group = NestedTaskSummary(name, name, "GROUP", children=children)
    _sum_up(group)
    return group


def _sum_up(node: NestedTaskSummary) -> None:
    for child in node.children:
        for state, count in child.state_counts.items():
            node.state_counts[state] = node.state_counts.get(state, 0) + count
        if child.timestamp and child.timestamp < (node.timestamp or _MAX_TIMESTAMP):
            node.timestamp = child.timestamp
    node.children.sort(key=_sibling_order)


def _sibling_order(node: NestedTaskSummary) -> tuple[int, int, int, int, bool]:
    counts = node.state_counts
    return (
        -sum(counts.get(state, 0) for state in _RUNNING),
        -sum(counts.get(state, 0) for state in _PENDING),
        -counts.get("FAILED", 0),
        node.timestamp or _MAX_TIMESTAMP,
        node.type != "ACTOR_CREATION_TASK",
    )
