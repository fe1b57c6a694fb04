"""The merge of rows as SQL, generated from the declaration of the tables."""

from collections.abc import Iterable
from pathlib import Path

from rayhistory.events.table_columns import Column, Rule, Table
from rayhistory.index.sql_text import quoted

_AGGREGATE = {Rule.HIGHEST: "max", Rule.LOWEST: "min"}


def merge_sql(table: Table, source: str, where: str = "") -> str:
    """Return a query that merges all rows with the same key into one."""
    groups = _groups(table)
    columns = list(table.keys)
    for column in table.columns:
        if column.rule in _AGGREGATE:
            columns.append(f"{_AGGREGATE[column.rule]}({column.name}) AS {column.name}")
        elif column.rule is Rule.LATEST:
            members = ", ".join(f"{member.name} := {member.name}" for member in groups[column.group])
            columns.append(
                f"max(struct_pack({members})) FILTER (WHERE {groups[column.group][0].name} IS NOT NULL)"
                f".{column.name} AS {column.name}"
            )
    condition = f" WHERE {where}" if where else ""
    inner = f"SELECT {', '.join(columns)} FROM {source}{condition} GROUP BY {', '.join(table.keys)}"
    return f"SELECT {', '.join(table.names)} FROM ({inner})"


def _groups(table: Table) -> dict[str, list[Column]]:
    groups: dict[str, list[Column]] = {}
    for column in table.columns:
        if column.group:
            groups.setdefault(column.group, []).append(column)
    return groups


def create_sql(table: Table, name: str = "") -> str:
    columns = ", ".join(f"{column.name} {column.type.sql}" for column in table.columns)
    return f"CREATE TABLE {name or table.name} ({columns})"


def parquet(paths: Iterable[Path | str], options: str = "") -> str:
    """Return the SQL expression that reads these files as one table."""
    return f"read_parquet([{', '.join(map(quoted, paths))}]{options})"
