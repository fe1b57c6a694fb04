"""Columns and types of the served tables, found by running their queries on empty tables."""

from functools import cache

import duckdb

from rayhistory.events.table_columns import TABLES
from rayhistory.index.fold.merge import create_sql
from rayhistory.index.fold.served_tables import served_sql
from rayhistory.index.fold.served_tasks import AS_OF_COLUMNS
from rayhistory.index.query.query import KEY_COLUMNS
from rayhistory.index.query.query_sql import column_types


@cache
def schema() -> dict[str, dict[str, str]]:
    """Return the columns of each table, with their types."""
    with duckdb.connect(":memory:") as database:
        for table in TABLES:
            database.execute(create_sql(table))
        queries = served_sql(None)
        sources = {name: f"({queries[name]})" if name in queries else name for name in KEY_COLUMNS}
        types = {name: column_types(database, source) for name, source in sources.items()}
    for column in AS_OF_COLUMNS:
        del types["tasks"][column]
    return types


@cache
def timestamp_columns() -> frozenset[str]:
    """Return the names of columns that hold milliseconds since 1970."""
    return frozenset(name for columns in schema().values() for name in columns if name.endswith(("_ms", "_time")))
