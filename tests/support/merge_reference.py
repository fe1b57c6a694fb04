"""A reference implementation of the merge in plain Python, to test the generated SQL."""

from collections.abc import Iterable

from rayhistory.events.table_columns import Rule, Table

Row = tuple[object, ...]


def merge_rows(table: Table, rows: Iterable[Row]) -> list[Row]:
    merged: dict[Row, Row] = {}
    positions = [i for i, column in enumerate(table.columns) if column.rule is Rule.KEY]
    for row in rows:
        key = tuple(row[i] for i in positions)
        merged[key] = _join(table, merged.get(key, row), row)
    return sorted(merged.values(), key=_sortable)


def _join(table: Table, left: Row, right: Row) -> Row:
    joined = list(left)
    done: set[str] = set()
    for i, column in enumerate(table.columns):
        if column.rule is Rule.HIGHEST:
            joined[i] = _pick(max, left[i], right[i])
        elif column.rule is Rule.LOWEST:
            joined[i] = _pick(min, left[i], right[i])
        elif column.rule is Rule.LATEST and column.group not in done:
            done.add(column.group)
            members = [j for j, other in enumerate(table.columns) if other.group == column.group]
            winner = max((left, right), key=lambda row: _latest_order([row[j] for j in members]))
            for j in members:
                joined[j] = winner[j] if winner[i] is not None else None
    return tuple(joined)


def _pick(choose: object, left: object, right: object) -> object:
    if left is None or right is None:
        return right if left is None else left
    return choose(left, right)  # type: ignore[operator]


def _latest_order(group: list[object]) -> tuple[object, ...]:
    """Order groups like DuckDB: a group without a time is the lowest; inside a group, NULL is the highest."""
    if group[0] is None:
        return (0,)
    return (1, *((value is None, value if value is not None else "") for value in group))


def _sortable(row: Row) -> list[tuple[bool, str, object]]:
    return [(value is None, type(value).__name__, value if value is not None else "") for value in row]
