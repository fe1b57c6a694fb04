"""The columns of the tables that are served: what their queries make of empty tables."""

from functools import cache

import duckdb

from rayhistory.events.tables import TABLES
from rayhistory.index.derive import served_sql
from rayhistory.index.merge import create_sql
from rayhistory.index.query import KEYS, column_types


@cache
def schema() -> dict[str, dict[str, str]]:
    """For each table, its columns and their types."""
    with duckdb.connect(":memory:") as database:
        for table in TABLES:
            database.execute(create_sql(table))
        queries = served_sql(None)
        sources = {name: f"({queries[name]})" if name in queries else name for name in KEYS}
        return {name: column_types(database, source) for name, source in sources.items()}


@cache
def moments() -> frozenset[str]:
    """The columns that are milliseconds since 1970."""
    return frozenset(name for columns in schema().values() for name in columns if name.endswith(("_ms", "_time")))
