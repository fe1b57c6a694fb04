"""The tree of who called whom, with exact counts of any number of tasks, and as many of them listed as can be shown.

A task hangs below the task that called it, a method below its actor, and an actor below the task that created it.
Siblings of one name are a group. What hangs below something that is not known is in no tree, as in Ray.

Almost all tasks of a large session call nothing and ran once: such leaves are never joined with each other, nor put
together by id, only counted where they hang. The few others become tables, level by level from the top, and are summed
up from the bottom.
"""

from typing import Any

import duckdb
import msgspec

from rayhistory.events.tables import TASK_STATES
from rayhistory.index.query import Filter, OpenIndex, Query, best_file, column_types, condition_sql, connection

_COLUMNS = (
    "task_id", "attempt_number", "name", "func_or_class_name", "type", "parent_task_id", "actor_id", "state",
    "creation_time_ms",
)  # fmt: skip
_STATES = ("NIL", *TASK_STATES)
_FIRST = (
    ("RUNNING", "RUNNING_IN_RAY_GET", "RUNNING_IN_RAY_WAIT"),
    ("PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "PENDING_OBJ_STORE_MEM_AVAIL", "PENDING_ARGS_FETCH"),
    ("FAILED",),
)
"""Siblings that have most of these come first, then the earlier ones."""
_LATEST = 2**60
_DRIVER = "f" * 40
_DOUBLINGS = 20

MOST_OF_A_GROUP = 1_000
MOST_LISTED = 30_000
DEEPEST = 200
"""What is called from further down is counted, but not shown: neither JSON nor a browser could follow."""


class Entry(msgspec.Struct):
    """A task, an actor, or a group of either that have one name; with the counts of everything below."""

    key: str
    name: str
    type: str
    timestamp: int | None
    state_counts: dict[str, int]
    children: list["Entry"] = []


Above = dict[str | None, tuple[Entry, int]]
"""Nodes by key, each with its level in the tree; the top has no key."""


class Tree(msgspec.Struct):
    children: list[Entry]
    complete: bool = True
    """Whether everything that is counted is also listed."""


async def read_tree(
    index: OpenIndex, filters: tuple[Filter, ...], *, most_of_a_group: int = MOST_OF_A_GROUP, most: int = MOST_LISTED
) -> Tree:
    """The tree of the tasks that pass the filters."""
    query = Query("tasks", _COLUMNS, filters)

    def work(tasks: str, actors: str) -> Tree:
        with connection().cursor() as database:
            where, values = condition_sql(column_types(database, tasks), query)
            levels = _Levels(database, f"{tasks}{where}", values, actors)
            return _Listing(levels, most_of_a_group, most).tree()

    return await index.read((best_file(query, _COLUMNS), "actors"), work)


def _named(states: list[str], expression: str) -> str:
    """One column for each state; {} stands for its name, {state} for the state's."""
    return ", ".join(expression.format(f"n_{state}", state=state) for state in states)


class _Levels:
    """All nodes, as something to select from: leaves as they are found, the others in a table for each level.

    Their columns: key, above (what it hangs below, NULL at the top), name, type, ts, first (the lowest id of a task in
    it, which is its place among equals), and n_… with the number of attempts in each state.
    """

    def __init__(self, database: duckdb.DuckDBPyConnection, tasks: str, values: list[Any], actors: str) -> None:
        self._database = database
        self._values = values
        self.calls = f"""(SELECT task_id, attempt_number, coalesce(nullif(name, ''), func_or_class_name, '') AS name,
          func_or_class_name, type, state, creation_time_ms AS ts, actor_id,
          'actor:' || coalesce(actor_id, '') AS actor,
          CASE WHEN NOT starts_with(parent_task_id, '{_DRIVER}') THEN parent_task_id END AS parent,
          CASE WHEN type IN ('ACTOR_TASK', 'ACTOR_CREATION_TASK') THEN actor ELSE parent END AS above FROM {tasks})"""
        found = {state for (state,) in self.rows(f"SELECT DISTINCT state FROM {self.calls}")}
        self.states = [state for state in _STATES if state in found] or [_STATES[0]]
        self.columns = ", ".join(("key", "above", "name", "type", "ts", "first", *(f"n_{s}" for s in self.states)))
        ranks = " ".join(f"WHEN state = '{state}' THEN {_rank(state) * _LATEST}" for state in self.states)
        self._code = f"(CASE {ranks} END + least(coalesce(nullif(ts, 0), {_LATEST}), {_LATEST} - 1))"
        self.sums = ", ".join(
            ("min(nullif(ts, 0)) AS ts", "min(first) AS first", _named(self.states, "sum({0})::BIGINT AS {0}"))
        )
        self._make_special()
        self._group_leaves()
        self._make_inner(actors)
        self.depth = self._make_levels()
        if self.depth:
            self._sum_up()

    def rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """What is asked for; the values of the filters are given wherever the calls are named."""
        return self._database.execute(sql, [*(self._values * sql.count(self.calls)), *values]).fetchall()

    def table(self, name: str, sql: str, values: tuple[Any, ...] = ()) -> int:
        """Makes a table, and tells how many rows it has."""
        [(count,)] = self.rows(f"CREATE OR REPLACE TEMP TABLE {name} AS {sql}", values)
        return int(count)

    def leaves(self, where: str, calls: str = "") -> str:
        """Nodes without anything below. Those that ran once have a code: their place among their like, as a number."""
        own = _named(self.states, "(state = '{state}')::BIGINT AS {0}")
        return f"""(SELECT task_id AS key, above, name, type, ts, task_id AS first, {own}, {self._code} AS code
          FROM (SELECT * FROM {calls or self.calls} {where}) ANTI JOIN special ON task_id = key
          UNION ALL SELECT {self.columns}, NULL FROM (SELECT * FROM special {where}) ANTI JOIN parents USING (key))"""

    def calls_of(self, groups: str) -> str:
        """The calls that belong to these groups, as far as they may be among the first."""
        return f"""(SELECT * FROM {self.calls} JOIN (SELECT name AS group_name, above AS group_above, cut FROM {groups})
          ON name = group_name AND above IS NOT DISTINCT FROM group_above WHERE coalesce({self._code} <= cut, true))"""

    def _make_special(self) -> None:
        """The tasks that are more than one row: those that call others, and those that were tried again."""
        self.table(
            "parents",
            f"""SELECT above AS key FROM {self.calls} WHERE above IS NOT NULL
              UNION SELECT parent FROM {self.calls} WHERE type = 'ACTOR_CREATION_TASK' AND parent IS NOT NULL""",
        )
        self.table("ids", f"FROM parents UNION SELECT task_id FROM {self.calls} WHERE attempt_number > 0")
        own = _named(self.states, "count(*) FILTER (state = '{state}') AS {0}")
        self.table(
            "special",
            f"""SELECT * EXCLUDE (one), key AS first, unnest(one) FROM
              (SELECT task_id AS key, arg_min(struct_pack(above, name, type, ts), attempt_number) AS one, {own}
              FROM {self.calls} SEMI JOIN ids ON task_id = key GROUP BY task_id)""",
        )

    def _group_leaves(self) -> None:
        """Leaves of one name below one node, counted once for all that needs no more of them than their codes."""
        self.table(
            "leaf_groups",
            f"""SELECT above, name, count(*) AS size, min(type) AS type, {self.sums},
                list(code) FILTER (WHERE code IS NOT NULL) AS codes
              FROM {self.leaves("")} GROUP BY above, name""",
        )

    def _make_inner(self, actors: str) -> None:
        none = _named(self.states, "0::BIGINT AS {0}")
        self.table(
            "nodes_within",
            f"""SELECT {self.columns} FROM special SEMI JOIN parents USING (key)
              UNION ALL SELECT actor, made.parent, CASE WHEN a.actor_id IS NULL
                THEN split_part(made.func_or_class_name, '.', 1)
                ELSE coalesce(nullif(a.repr_name, ''), a.class_name, '') END, 'ACTOR', NULL, NULL, {none}
              FROM (SELECT actor, first(struct_pack(parent, func_or_class_name, actor_id)
                    ORDER BY task_id DESC, attempt_number) AS made
                  FROM {self.calls} WHERE type = 'ACTOR_CREATION_TASK' GROUP BY actor)
                LEFT JOIN {actors} a ON a.actor_id = made.actor_id""",
        )

    def _make_levels(self) -> int:
        """How many levels of nodes with something below there are, from the top."""
        if not self.table("level_0", f"SELECT {self.columns} FROM nodes_within WHERE above IS NULL"):
            return 0
        for depth in range(1, DEEPEST):
            upper = f"(SELECT key AS above FROM level_{depth - 1})"
            if not self.table(
                f"level_{depth}", f"SELECT {self.columns} FROM nodes_within SEMI JOIN {upper} USING (above)"
            ):
                return depth
        return DEEPEST

    def _sum_up(self) -> None:
        """From the lowest level to the top; each node then has the sums of all that hangs below it."""
        self.table("below", f"SELECT above, {self.sums} FROM leaf_groups WHERE above IS NOT NULL GROUP BY above")
        if self.depth == DEEPEST:
            self._add_what_is_too_deep()
        names = ", ".join(("above", "ts", "first", *(f"n_{state}" for state in self.states)))
        for depth in range(self.depth - 1, -1, -1):
            lower = f"SELECT {names} FROM below"
            lower += f" UNION ALL SELECT {names} FROM level_{depth + 1}" if depth + 1 < self.depth else ""
            self.table(
                f"level_{depth}",
                f"""SELECT key, l.above, name, type, coalesce(least(nullif(l.ts, 0), b.ts), l.ts) AS ts,
                  least(l.first, b.first) AS first, {_named(self.states, "l.{0} + coalesce(b.{0}, 0) AS {0}")}
                FROM level_{depth} l
                LEFT JOIN (SELECT above, {self.sums} FROM ({lower}) GROUP BY above) b ON b.above = key""",
            )

    def _add_what_is_too_deep(self) -> None:
        """To the sums of what it hangs below on the lowest level, which is found by steps of doubled length."""
        placed = " UNION ALL ".join(f"SELECT key FROM level_{depth}" for depth in range(self.depth))
        self.table("deep", f"SELECT key, above AS up FROM nodes_within ANTI JOIN ({placed}) USING (key)")
        for _ in range(_DOUBLINGS):
            self.table("deep", "SELECT d.key, coalesce(e.up, d.up) AS up FROM deep d LEFT JOIN deep e ON e.key = d.up")
        names = ", ".join(("ts", "first", *(f"n_{state}" for state in self.states)))
        self.table(
            "below",
            f"""SELECT * FROM below UNION ALL SELECT up AS above, {self.sums} FROM
              (SELECT key, {names} FROM nodes_within UNION ALL SELECT above, {names} FROM below) JOIN deep USING (key)
              WHERE up IN (SELECT key FROM level_{self.depth - 1}) GROUP BY up""",
        )


class _Listing:
    """What is shown of the levels, from the top down, until it is enough."""

    def __init__(self, levels: _Levels, most_of_a_group: int, most: int) -> None:
        self._levels = levels
        self._most_of_a_group = most_of_a_group
        self._left = most
        self._complete = True
        self._order = ", ".join(
            [
                *(f"{term} DESC" for wanted in _FIRST if (term := _together(levels.states, wanted))),
                f"coalesce(nullif(ts, 0), {_LATEST})",
                "type <> 'ACTOR_CREATION_TASK'",
                "first",
            ]
        )

    def tree(self) -> Tree:
        top = Entry("", "", "", None, {})
        above: Above = {None: (top, 0)}
        for depth in range(self._levels.depth + 1):
            above = self._list_below(above, depth)
        return Tree(top.children, self._complete)

    def _list_below(self, above: Above, depth: int) -> Above:
        """Adds what hangs below these nodes, and returns those of it that have something below, too."""
        shown = {key: place for key, place in above.items() if place[1] < DEEPEST} if self._left > 0 else {}
        self._complete &= len(shown) == len(above)
        if not shown:
            return {}
        below = self._below(shown)
        groups = self._groups(shown, below, depth)
        self._cut([size for _, _, size in groups.values()])
        following: Above = {}
        leaves = self._levels.leaves(below, self._levels.calls_of("groups"))
        found = self._first(self._members(leaves, below, depth))
        for key, name, more, own_key, kind, ts, *numbers in found:
            group, level, size = groups[key, name]
            entry = group
            if size == 1:
                entry.key, entry.type, entry.timestamp = own_key, kind, ts
            else:
                entry = Entry(own_key, name, kind, ts, _counts(self._levels.states, numbers))
                group.children.append(entry)
            if more:
                following[own_key] = entry, level
        self._left -= len(found)
        self._complete &= len(found) == sum(size for _, _, size in groups.values())
        return following

    def _below(self, shown: Above) -> str:
        """What narrows nodes down to those below the ones that are shown."""
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

    def _groups(self, shown: Above, below: str, depth: int) -> dict[tuple[str | None, str], tuple[Entry, int, int]]:
        """By what they hang below and by name: the group, the level of what is in it, and how many that are."""
        counts = ", ".join(f"n_{state}" for state in self._levels.states)
        members = f"SELECT above, name, size, type, ts, first, {counts} FROM leaf_groups {below}"
        if depth < self._levels.depth:
            members += f" UNION ALL SELECT above, name, 1, type, ts, first, {counts} FROM level_{depth} {below}"
        found = self._levels.table(
            "groups",
            f"""SELECT * FROM (SELECT above, name, sum(size)::BIGINT AS size,
                CASE WHEN sum(size) > 1 THEN 'GROUP' ELSE min(type) END AS type, {self._levels.sums}
              FROM ({members}) GROUP BY above, name) ORDER BY {self._order} LIMIT {self._left + 1}""",
        )
        self._complete &= found <= self._left
        self._levels.table("groups", f"SELECT *, NULL::BIGINT AS cut FROM groups LIMIT {self._left}")
        groups = {}
        for key, name, size, ts, *numbers in self._levels.rows(f"SELECT above, name, size, ts, {counts} FROM groups"):
            parent, level = shown[key]
            entry = Entry(name, name, "GROUP", ts, _counts(self._levels.states, numbers))
            parent.children.append(entry)
            groups[key, name] = entry, level + (1 if size == 1 else 2), size
        return groups

    def _cut(self, sizes: list[int]) -> None:
        """Finds the code after which no leaf of a large group can be listed, so that few are left to be sorted."""
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
        """How many of a group can be listed at most, when all get as many as they have or as others get."""
        room, share = self._left, 0
        for waiting, size in zip(range(len(sizes), 0, -1), sorted(sizes), strict=True):
            share = -(-room // waiting)
            if share <= size:
                break
            room -= size
        return max(1, min(share, self._most_of_a_group))

    def _first(self, members: str) -> list[tuple[Any, ...]]:
        """The first of every group, then the second, and so on."""
        counts = ", ".join(f"n_{state}" for state in self._levels.states)
        return self._levels.rows(
            f"""SELECT above, name, more, key, type, ts, {counts} FROM (SELECT *, row_number()
                OVER (PARTITION BY above, name ORDER BY {self._order}) AS place
                FROM {members} m SEMI JOIN groups g ON m.name = g.name AND m.above IS NOT DISTINCT FROM g.above)
              WHERE place <= {self._most_of_a_group} ORDER BY place LIMIT {self._left}"""
        )


def _rank(state: str) -> int:
    return next((rank for rank, states in enumerate(_FIRST) if state in states), len(_FIRST))


def _together(states: list[str], wanted: tuple[str, ...]) -> str:
    return " + ".join(f"n_{state}" for state in states if state in wanted)


def _counts(states: list[str], numbers: list[int]) -> dict[str, int]:
    return {state: number for state, number in zip(states, numbers, strict=True) if number}
