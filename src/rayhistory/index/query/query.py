"""A query as plain values: table, columns, filters, sort order and page."""

from typing import Any

import msgspec

from rayhistory.events.table_columns import TABLES
from rayhistory.index.fold.served_tables import SERVED_AS_MERGED

Row = dict[str, Any]

KEY_COLUMNS: dict[str, tuple[str, ...]] = {
    "tasks": ("task_id", "attempt_number"),
    "actors": ("actor_id",),
    "jobs": ("type", "job_id", "submission_id"),
    "nodes": ("node_id",),
    "workers": ("worker_id",),
    "placement_groups": ("placement_group_id",),
    **{table.name: tuple(table.keys) for table in TABLES if table.name in (*SERVED_AS_MERGED, "gaps")},
}
"""The served tables, each with the columns that identify a row."""


class Filter(msgspec.Struct, frozen=True):
    """A condition on one column. As in Ray, text comparison ignores case, and NULL differs from every value."""

    column: str
    operator: str
    value: Any


class AllOf(msgspec.Struct, frozen=True):
    """Conditions that must all match."""

    conditions: tuple["Condition", ...]


class AnyOf(msgspec.Struct, frozen=True):
    """Conditions of which at least one must match."""

    conditions: tuple["Condition", ...]


Condition = Filter | AllOf | AnyOf


def columns_in(condition: Condition) -> set[str]:
    """Return the columns that a condition compares."""
    if isinstance(condition, Filter):
        return {condition.column}
    return set[str]().union(*map(columns_in, condition.conditions))


class Query(msgspec.Struct, frozen=True):
    """A selection of rows from one table."""

    table: str
    columns: tuple[str, ...] = ()
    """Columns to return; all if empty."""
    filters: tuple[Condition, ...] = ()
    """Conditions that must all match."""
    sort: tuple[str, ...] = ()
    """Column names; a leading minus means descending. NULL sorts last in both directions."""
    limit: int | None = None
    after: tuple[Any, ...] | None = None
    """Return only rows after the row that has these values in the columns of `order`."""

    @property
    def plain_filters(self) -> list[Filter]:
        """Filters that every row must match. They decide which files are read."""
        return [condition for condition in self.filters if isinstance(condition, Filter)]

    @property
    def filter_columns(self) -> set[str]:
        return set[str]().union(*map(columns_in, self.filters))

    @property
    def order(self) -> tuple[str, ...]:
        """The sort columns and then the key columns, so that the order is unique. Repeated columns are ignored."""
        terms: dict[str, str] = {}
        for name in (*self.sort, *KEY_COLUMNS.get(self.table, ())):
            terms.setdefault(name.lstrip("-"), name)
        return tuple(terms.values())

    def with_order(self) -> "Query":
        """Return the query with the columns of `order`, which are needed to continue after the last row."""
        if not self.columns:
            return self
        needed = (name.lstrip("-") for name in self.order)
        return msgspec.structs.replace(self, columns=tuple(dict.fromkeys((*self.columns, *needed))))

    def position_of(self, row: Row) -> tuple[Any, ...]:
        """Return the cursor of a row: pass it as `after` to read the rows that follow."""
        return tuple(row[name.lstrip("-")] for name in self.order)
