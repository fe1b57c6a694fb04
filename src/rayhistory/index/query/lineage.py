"""The lineage of tasks: a tree of callers and callees. All of them are counted, and a limited number is listed.

The parent of a task is the task that called it. The parent of a method is its actor, and the parent of an actor is the
task that created it. Siblings with the same name form a group. As in Ray, tasks with an unknown caller are left out.

Almost all tasks of a large session call nothing and ran once. They are the leaves of the tree, and are only counted at
their parents. All other tasks and actors are in one table per level of the tree. The tables are made from the top
level down; then the counts are added up from the lowest level.
"""

from typing import Any

import duckdb
import msgspec

from rayhistory.events.table_columns import TASK_STATES
from rayhistory.index.query.database import connection
from rayhistory.index.query.open_index import OpenIndex
from rayhistory.index.query.query import Filter, Query
from rayhistory.index.query.query_sql import column_types, where_sql
from rayhistory.index.query.table_choice import best_file

_COLUMNS = (
    "task_id", "attempt_number", "name", "func_or_class_name", "type", "parent_task_id", "actor_id", "state",
    "creation_time_ms",
)  # fmt: skip
_STATES = ("NIL", *TASK_STATES)
_STATE_PRIORITY = (
    ("RUNNING", "RUNNING_IN_RAY_GET", "RUNNING_IN_RAY_WAIT"),
    ("PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "PENDING_OBJ_STORE_MEM_AVAIL", "PENDING_ARGS_FETCH"),
    ("FAILED",),
)
"""The order in which siblings are listed: by their number of tasks in these states, then the oldest first."""
_MAX_TIMESTAMP = 2**60
_DRIVER_TASK_ID_PREFIX = "f" * 40
_POINTER_DOUBLINGS = 20

MAX_LISTED_PER_GROUP = 1_000
MAX_LISTED_NODES = 30_000
MAX_DEPTH = 200
"""Maximum depth of listed calls. Deeper calls are only counted, because JSON parsers and browsers limit nesting."""


class LineageNode(msgspec.Struct):
    """A task, an actor, or a group of siblings with one name; counts include all descendants."""

    key: str
    name: str
    type: str
    timestamp: int | None
    state_counts: dict[str, int]
    children: list["LineageNode"] = []


NodesByKey = dict[str | None, tuple[LineageNode, int]]
"""Entries of the tree by key, each with its depth. The root has no key."""


class LineageTree(msgspec.Struct):
    children: list[LineageNode]
    complete: bool = True
    """True if everything that was counted is also listed."""


async def read_lineage(
    index: OpenIndex,
    filters: tuple[Filter, ...],
    *,
    max_per_group: int = MAX_LISTED_PER_GROUP,
    max_nodes: int = MAX_LISTED_NODES,
) -> LineageTree:
    """Build the tree of the tasks that match the filters."""
    query = Query("tasks", _COLUMNS, filters)

    def work(tasks: str, actors: str) -> LineageTree:
        with connection().cursor() as database:
            where, values = where_sql(column_types(database, tasks), query)
            levels = _Levels(database, f"{tasks}{where}", values, actors)
            return _TreeListing(levels, max_per_group, max_nodes).tree()

    return await index.read((best_file(query, _COLUMNS), "actors"), work)


def _per_state(states: list[str], expression: str) -> str:
    """Repeat an SQL expression for each state. `{0}` becomes the name of the state's column, `{state}` the state."""
    return ", ".join(expression.format(f"n_{state}", state=state) for state in states)


class _Levels:
    """SQL sources for all entries of the tree: leaves as a subquery, all others as one table per level.

    Columns: `key`, `above` (the parent's key, NULL at the top), `name`, `type`, `ts`, `first` (the lowest task id of
    the entry, to break ties), and `n_…` (number of attempts in each state).
    """

    def __init__(self, database: duckdb.DuckDBPyConnection, tasks: str, values: list[Any], actors: str) -> None:
        self._database = database
        self._values = values
        self.calls = f"""(SELECT task_id, attempt_number, coalesce(nullif(name, ''), func_or_class_name, '') AS name,
          func_or_class_name, type, state, creation_time_ms AS ts, actor_id,
          'actor:' || coalesce(actor_id, '') AS actor,
          CASE WHEN NOT starts_with(parent_task_id, '{_DRIVER_TASK_ID_PREFIX}') THEN parent_task_id END AS parent,
          CASE WHEN type IN ('ACTOR_TASK', 'ACTOR_CREATION_TASK') THEN actor ELSE parent END AS above FROM {tasks})"""
        found = {state for (state,) in self.rows(f"SELECT DISTINCT state FROM {self.calls}")}
        self.states = [state for state in _STATES if state in found] or [_STATES[0]]
        self.columns = ", ".join(("key", "above", "name", "type", "ts", "first", *(f"n_{s}" for s in self.states)))
        ranks = " ".join(f"WHEN state = '{state}' THEN {_rank(state) * _MAX_TIMESTAMP}" for state in self.states)
        self._code = f"(CASE {ranks} END + least(coalesce(nullif(ts, 0), {_MAX_TIMESTAMP}), {_MAX_TIMESTAMP} - 1))"
        self.sums = ", ".join(
            ("min(nullif(ts, 0)) AS ts", "min(first) AS first", _per_state(self.states, "sum({0})::BIGINT AS {0}"))
        )
        self._make_special()
        self._group_leaves()
        self._make_inner(actors)
        self.depth = self._make_levels()
        if self.depth:
            self._sum_up()

    def rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Run a query. Filter values are bound once for each use of `calls`."""
        return self._database.execute(sql, [*(self._values * sql.count(self.calls)), *values]).fetchall()

    def table(self, name: str, sql: str, values: tuple[Any, ...] = ()) -> int:
        """Create a table and return its number of rows."""
        [(count,)] = self.rows(f"CREATE OR REPLACE TEMP TABLE {name} AS {sql}", values)
        return int(count)

    def leaves(self, where: str, calls: str = "") -> str:
        """Return SQL for entries without children. If they have one attempt, `code` sorts them among siblings."""
        own = _per_state(self.states, "(state = '{state}')::BIGINT AS {0}")
        return f"""(SELECT task_id AS key, above, name, type, ts, task_id AS first, {own}, {self._code} AS code
          FROM (SELECT * FROM {calls or self.calls} {where}) ANTI JOIN special ON task_id = key
          UNION ALL SELECT {self.columns}, NULL FROM (SELECT * FROM special {where}) ANTI JOIN parents USING (key))"""

    def calls_of(self, groups: str) -> str:
        """Return SQL for the calls in some groups, without those that sort too late in their group to be listed."""
        return f"""(SELECT * FROM {self.calls} JOIN (SELECT name AS group_name, above AS group_above, cut FROM {groups})
          ON name = group_name AND above IS NOT DISTINCT FROM group_above WHERE coalesce({self._code} <= cut, true))"""

    def _make_special(self) -> None:
        """Create the tables of tasks that need more than one row: callers and retried tasks."""
        self.table(
            "parents",
            f"""SELECT above AS key FROM {self.calls} WHERE above IS NOT NULL
              UNION SELECT parent FROM {self.calls} WHERE type = 'ACTOR_CREATION_TASK' AND parent IS NOT NULL""",
        )
        self.table("ids", f"FROM parents UNION SELECT task_id FROM {self.calls} WHERE attempt_number > 0")
        own = _per_state(self.states, "count(*) FILTER (state = '{state}') AS {0}")
        self.table(
            "special",
            f"""SELECT * EXCLUDE (one), key AS first, unnest(one) FROM
              (SELECT task_id AS key, arg_min(struct_pack(above, name, type, ts), attempt_number) AS one, {own}
              FROM {self.calls} SEMI JOIN ids ON task_id = key GROUP BY task_id)""",
        )

    def _group_leaves(self) -> None:
        """Count the leaves with the same name and parent, and collect their codes."""
        self.table(
            "leaf_groups",
            f"""SELECT above, name, count(*) AS size, min(type) AS type, {self.sums},
                list(code) FILTER (WHERE code IS NOT NULL) AS codes
              FROM {self.leaves("")} GROUP BY above, name""",
        )

    def _make_inner(self, actors: str) -> None:
        none = _per_state(self.states, "0::BIGINT AS {0}")
        self.table(
            "inner_nodes",
            f"""SELECT {self.columns} FROM special SEMI JOIN parents USING (key)
              UNION ALL SELECT actor, creation.parent, CASE WHEN a.actor_id IS NULL
                THEN split_part(creation.func_or_class_name, '.', 1)
                ELSE coalesce(nullif(a.repr_name, ''), a.class_name, '') END, 'ACTOR', NULL, NULL, {none}
              FROM (SELECT actor, first(struct_pack(parent, func_or_class_name, actor_id)
                    ORDER BY task_id DESC, attempt_number) AS creation
                  FROM {self.calls} WHERE type = 'ACTOR_CREATION_TASK' GROUP BY actor)
                LEFT JOIN {actors} a ON a.actor_id = creation.actor_id""",
        )

    def _make_levels(self) -> int:
        """Create one table per level, from the top, for entries with children. Return the number of levels."""
        if not self.table("level_0", f"SELECT {self.columns} FROM inner_nodes WHERE above IS NULL"):
            return 0
        for depth in range(1, MAX_DEPTH):
            upper = f"(SELECT key AS above FROM level_{depth - 1})"
            if not self.table(
                f"level_{depth}", f"SELECT {self.columns} FROM inner_nodes SEMI JOIN {upper} USING (above)"
            ):
                return depth
        return MAX_DEPTH

    def _sum_up(self) -> None:
        """Add the counts of all descendants to each entry, from the lowest level to the top."""
        self.table("below", f"SELECT above, {self.sums} FROM leaf_groups WHERE above IS NOT NULL GROUP BY above")
        if self.depth == MAX_DEPTH:
            self._add_nodes_below_max_depth()
        names = ", ".join(("above", "ts", "first", *(f"n_{state}" for state in self.states)))
        for depth in range(self.depth - 1, -1, -1):
            lower = f"SELECT {names} FROM below"
            lower += f" UNION ALL SELECT {names} FROM level_{depth + 1}" if depth + 1 < self.depth else ""
            self.table(
                f"level_{depth}",
                f"""SELECT key, l.above, name, type, coalesce(least(nullif(l.ts, 0), b.ts), l.ts) AS ts,
                  least(l.first, b.first) AS first, {_per_state(self.states, "l.{0} + coalesce(b.{0}, 0) AS {0}")}
                FROM level_{depth} l
                LEFT JOIN (SELECT above, {self.sums} FROM ({lower}) GROUP BY above) b ON b.above = key""",
            )

    def _add_nodes_below_max_depth(self) -> None:
        """Add entries below the lowest level to their ancestor on that level, which is found by pointer doubling."""
        listed = " UNION ALL ".join(f"SELECT key FROM level_{depth}" for depth in range(self.depth))
        self.table("deep", f"SELECT key, above AS up FROM inner_nodes ANTI JOIN ({listed}) USING (key)")
        for _ in range(_POINTER_DOUBLINGS):
            self.table("deep", "SELECT d.key, coalesce(e.up, d.up) AS up FROM deep d LEFT JOIN deep e ON e.key = d.up")
        names = ", ".join(("ts", "first", *(f"n_{state}" for state in self.states)))
        self.table(
            "below",
            f"""SELECT * FROM below UNION ALL SELECT up AS above, {self.sums} FROM
              (SELECT key, {names} FROM inner_nodes UNION ALL SELECT above, {names} FROM below) JOIN deep USING (key)
              WHERE up IN (SELECT key FROM level_{self.depth - 1}) GROUP BY up""",
        )


class _TreeListing:
    """Builds the listed tree from the top down, until `max_nodes` are listed."""

    def __init__(self, levels: _Levels, max_per_group: int, max_nodes: int) -> None:
        self._levels = levels
        self._max_per_group = max_per_group
        self._remaining = max_nodes
        self._complete = True
        self._order = ", ".join(
            [
                *(f"{term} DESC" for wanted in _STATE_PRIORITY if (term := _sum_of_states(levels.states, wanted))),
                f"coalesce(nullif(ts, 0), {_MAX_TIMESTAMP})",
                "type <> 'ACTOR_CREATION_TASK'",
                "first",
            ]
        )

    def tree(self) -> LineageTree:
        top = LineageNode("", "", "", None, {})
        above: NodesByKey = {None: (top, 0)}
        for depth in range(self._levels.depth + 1):
            above = self._list_below(above, depth)
        return LineageTree(top.children, self._complete)

    def _list_below(self, above: NodesByKey, depth: int) -> NodesByKey:
        """Add the children of these entries. Return those of the added children that have children themselves."""
        shown = {key: node for key, node in above.items() if node[1] < MAX_DEPTH} if self._remaining > 0 else {}
        self._complete &= len(shown) == len(above)
        if not shown:
            return {}
        below = self._below(shown)
        groups = self._groups(shown, below, depth)
        self._cut([size for _, _, size in groups.values()])
        following: NodesByKey = {}
        leaves = self._levels.leaves(below, self._levels.calls_of("groups"))
        found = self._first(self._members(leaves, below, depth))
        for key, name, more, own_key, kind, ts, *numbers in found:
            group, level, size = groups[key, name]
            entry = group
            if size == 1:
                entry.key, entry.type, entry.timestamp = own_key, kind, ts
            else:
                entry = LineageNode(own_key, name, kind, ts, _counts(self._levels.states, numbers))
                group.children.append(entry)
            if more:
                following[own_key] = entry, level
        self._remaining -= len(found)
        self._complete &= len(found) == sum(size for _, _, size in groups.values())
        return following

    def _below(self, shown: NodesByKey) -> str:
        """Return the SQL clause that selects the children of these entries."""
        if None in shown:
            return "WHERE above IS NULL"
        keys = msgspec.json.encode(list(shown)).decode()
        self._levels.table("shown", """SELECT unnest(from_json(?, '["VARCHAR"]')) AS above""", (keys,))
        return "SEMI JOIN shown USING (above)"

    def _members(self, leaves: str, below: str, depth: int) -> str:
        columns = self._levels.columns
        found = f"SELECT {columns}, code, false AS more FROM {leaves}"
        if depth < self._levels.depth:
            found += f" UNION ALL SELECT {columns}, NULL, true FROM level_{depth} {below}"
        return f"({found})"

    def _groups(
        self, shown: NodesByKey, below: str, depth: int
    ) -> dict[tuple[str | None, str], tuple[LineageNode, int, int]]:
        """Return, by parent key and name: the entry of a group, the depth of its members, and their number."""
        counts = ", ".join(f"n_{state}" for state in self._levels.states)
        members = f"SELECT above, name, size, type, ts, first, {counts} FROM leaf_groups {below}"
        if depth < self._levels.depth:
            members += f" UNION ALL SELECT above, name, 1, type, ts, first, {counts} FROM level_{depth} {below}"
        found = self._levels.table(
            "groups",
            f"""SELECT * FROM (SELECT above, name, sum(size)::BIGINT AS size,
                CASE WHEN sum(size) > 1 THEN 'GROUP' ELSE min(type) END AS type, {self._levels.sums}
              FROM ({members}) GROUP BY above, name) ORDER BY {self._order} LIMIT {self._remaining + 1}""",
        )
        self._complete &= found <= self._remaining
        self._levels.table("groups", f"SELECT *, NULL::BIGINT AS cut FROM groups LIMIT {self._remaining}")
        groups = {}
        for key, name, size, ts, *numbers in self._levels.rows(f"SELECT above, name, size, ts, {counts} FROM groups"):
            parent, level = shown[key]
            entry = LineageNode(name, name, "GROUP", ts, _counts(self._levels.states, numbers))
            parent.children.append(entry)
            groups[key, name] = entry, level + (1 if size == 1 else 2), size
        return groups

    def _cut(self, sizes: list[int]) -> None:
        """For each large group, find the highest `code` that can still be listed, so that few leaves must be sorted."""
        share = self._share(sizes)
        if max(sizes, default=0) > share:
            self._levels.table(
                "groups",
                f"""SELECT g.* EXCLUDE (cut), c.cut FROM groups g LEFT JOIN (
                  SELECT above, name, list_max(min(code, {share})) AS cut
                  FROM (SELECT above, name, unnest(codes) AS code FROM leaf_groups WHERE size > {share})
                  GROUP BY above, name) c ON c.name = g.name AND c.above IS NOT DISTINCT FROM g.above""",
            )

    def _share(self, sizes: list[int]) -> int:
        """Return how many members a group may list at most, so that all groups share the remaining rows evenly."""
        remaining, share = self._remaining, 0
        for groups_left, size in zip(range(len(sizes), 0, -1), sorted(sizes), strict=True):
            share = -(-remaining // groups_left)
            if share <= size:
                break
            remaining -= size
        return max(1, min(share, self._max_per_group))

    def _first(self, members: str) -> list[tuple[Any, ...]]:
        """Return members of all groups by turns: the first of each group, then the second, and so on."""
        counts = ", ".join(f"n_{state}" for state in self._levels.states)
        return self._levels.rows(
            f"""SELECT above, name, more, key, type, ts, {counts} FROM (SELECT *, row_number()
                OVER (PARTITION BY above, name ORDER BY {self._order}) AS position
                FROM {members} m SEMI JOIN groups g ON m.name = g.name AND m.above IS NOT DISTINCT FROM g.above)
              WHERE position <= {self._max_per_group} ORDER BY position LIMIT {self._remaining}"""
        )


def _rank(state: str) -> int:
    return next((rank for rank, states in enumerate(_STATE_PRIORITY) if state in states), len(_STATE_PRIORITY))


def _sum_of_states(states: list[str], wanted: tuple[str, ...]) -> str:
    return " + ".join(f"n_{state}" for state in states if state in wanted)


def _counts(states: list[str], numbers: list[int]) -> dict[str, int]:
    return {state: number for state, number in zip(states, numbers, strict=True) if number}
