"""The tree of calls in plain Python, as Ray makes it: what the SQL of `rayhistory.index.lineage` is compared with."""

from rayhistory import ids
from rayhistory.index.query import Row
from rayhistory.server.lineage import Link, Node

_RUNNING = ("RUNNING", "RUNNING_IN_RAY_GET", "RUNNING_IN_RAY_WAIT")
_PENDING = (
    "PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "PENDING_OBJ_STORE_MEM_AVAIL", "PENDING_ARGS_FETCH",
)  # fmt: skip
_FOREVER = 2**63
_DEEPEST = 200
"""What is called from further down is counted, but not shown: neither JSON nor a browser could follow."""


def lineage(tasks: list[Row], actors: list[Row]) -> list[Node]:
    """The top of the tree; each node with the counts of everything below it."""
    top = Node("", "", "", children=_Tree(tasks, actors).roots())
    for node in reversed(_downwards(top)):
        _finish(node)
    _cut_below(top, _DEEPEST)
    return top.children


class _Tree:
    def __init__(self, tasks: list[Row], actors: list[Row]) -> None:
        self._rows = tasks
        self._actors = {row["actor_id"]: row for row in actors}
        self._tasks = {row["task_id"]: row for row in tasks}
        self._creations = {_actor_key(row): row for row in tasks if row["type"] == "ACTOR_CREATION_TASK"}
        self._nodes: dict[str, Node] = {}
        self._roots: list[Node] = []

    def roots(self) -> list[Node]:
        for row in self._rows:
            self._place(row["task_id"])
            counts = self._nodes[row["task_id"]].state_counts
            counts[row["state"]] = counts.get(row["state"], 0) + 1
        return self._roots

    def _place(self, key: str) -> None:
        """Makes the node and those above it, up to one that is there, to the top, or to one that is not known."""
        below: Node | None = None
        while True:
            node = known = self._nodes.get(key)
            if node is None:
                node = self._made(key)
            if node is None:
                return
            self._nodes[key] = node
            if below is not None:
                node.children.append(below)
            if known is not None:
                return
            above = self._above(key)
            if above is None:
                self._roots.append(node)
                return
            below, key = node, above

    def _made(self, key: str) -> Node | None:
        if task := self._tasks.get(key):
            name = task["name"] or task["func_or_class_name"]
            return Node(name, key, task["type"], task["creation_time_ms"], link=Link("task", key))
        if creation := self._creations.get(key):
            actor_id = creation["actor_id"]
            return Node(self._actor_name(creation), key, "ACTOR", link=Link("actor", actor_id))
        return None

    def _actor_name(self, creation: Row) -> str:
        actor = self._actors.get(creation["actor_id"])
        if actor is None:
            return str(creation["func_or_class_name"].partition(".")[0])
        return str(actor["repr_name"] or actor["class_name"] or "")

    def _above(self, key: str) -> str | None:
        """What the node hangs below; None at the top."""
        task = self._tasks.get(key)
        if task and task["type"] in ("ACTOR_TASK", "ACTOR_CREATION_TASK"):
            return _actor_key(task)
        parent: str | None = (task or self._creations[key])["parent_task_id"]
        return None if parent is None or ids.is_driver_task(parent) else parent


def _actor_key(task: Row) -> str:
    return f"actor:{task['actor_id']}"


def _downwards(top: Node) -> list[Node]:
    """Every node after the one that it hangs below; a chain of calls may be longer than Python's stack."""
    nodes, waiting = [], [top]
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        waiting += node.children
    return nodes


def _cut_below(top: Node, depth: int) -> None:
    level = [top]
    for _ in range(depth):
        level = [child for node in level for child in node.children]
    for node in level:
        node.children = []


def _finish(node: Node) -> None:
    named: dict[str, list[Node]] = {}
    for child in node.children:
        named.setdefault(child.name, []).append(child)
    node.children = [same[0] if len(same) == 1 else _group(name, same) for name, same in named.items()]
    _sum_up(node)


def _group(name: str, children: list[Node]) -> Node:
    group = Node(name, name, "GROUP", children=children)
    _sum_up(group)
    return group


def _sum_up(node: Node) -> None:
    for child in node.children:
        for state, count in child.state_counts.items():
            node.state_counts[state] = node.state_counts.get(state, 0) + count
        if child.timestamp and child.timestamp < (node.timestamp or _FOREVER):
            node.timestamp = child.timestamp
    node.children.sort(key=_place_among_siblings)


def _place_among_siblings(node: Node) -> tuple[int, int, int, int, bool]:
    counts = node.state_counts
    return (
        -sum(counts.get(state, 0) for state in _RUNNING),
        -sum(counts.get(state, 0) for state in _PENDING),
        -counts.get("FAILED", 0),
        node.timestamp or _FOREVER,
        node.type != "ACTOR_CREATION_TASK",
    )
