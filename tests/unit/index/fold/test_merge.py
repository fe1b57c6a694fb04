"""The merge is commutative, associative and idempotent, in SQL as in the reference."""

import os
import random

import duckdb
import pytest
from arro3.core import Table as ArrowTable
from hypothesis import given, settings
from hypothesis import strategies as st

from rayhistory.events.table_columns import TABLES, TABLES_BY_NAME, Column, Rule, Table, Type
from rayhistory.index.fold.merge import merge_sql
from rayhistory.index.fold.partial_files import arrow_batch
from support.merge_reference import merge_rows

Row = tuple[object, ...]
DATABASE = duckdb.connect(config={"threads": 1})

VALUES = {
    Type.TEXT: st.sampled_from(["", "a", "B", "b", "é", "\x00", "🦆"]),
    Type.JSON: st.sampled_from(['{"CPU": 1.0}', "{}", "[1]"]),
    Type.INT: st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3),
    Type.BOOL: st.booleans(),
}


def rows_of(table: Table) -> st.SearchStrategy[list[Row]]:
    columns = [
        st.sampled_from(["k1", "k2"]) if column.rule is Rule.KEY and column.type is Type.TEXT
        else st.integers(0, 1) if column.rule is Rule.KEY
        else st.none() | VALUES[column.type]
        for column in table.columns
    ]  # fmt: skip
    return st.lists(st.tuples(*columns), max_size=6)


LAWS = settings(max_examples=int(os.environ.get("RAYHISTORY_LAWS") or 15), deadline=None)


def merged_by_sql(table: Table, rows: list[Row]) -> list[Row]:
    if not rows:
        return []
    DATABASE.register("source", ArrowTable.from_batches([arrow_batch(table, list(zip(*rows, strict=True)))]))
    return merge_rows(table, DATABASE.execute(merge_sql(table, "source")).fetchall())


@pytest.mark.parametrize("name", TABLES_BY_NAME)
@LAWS
@given(data=st.data())
def test_sql_equals_the_reference(name: str, data: st.DataObject) -> None:
    table = TABLES_BY_NAME[name]
    rows = data.draw(rows_of(table))
    assert merged_by_sql(table, rows) == merge_rows(table, rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES_BY_NAME)
@LAWS
@given(data=st.data(), seed=st.integers(0, 1000))
def test_order_repetition_and_grouping_do_not_matter(name: str, data: st.DataObject, seed: int) -> None:
    table = TABLES_BY_NAME[name]
    rows = data.draw(rows_of(table))
    shuffled = rows + rows[: len(rows) // 2]
    random.Random(seed).shuffle(shuffled)
    cut = seed % (len(shuffled) + 1)
    in_two_steps = merged_by_sql(table, shuffled[:cut]) + merged_by_sql(table, shuffled[cut:])
    expected = merged_by_sql(table, rows)
    assert merged_by_sql(table, shuffled) == expected
    assert merged_by_sql(table, in_two_steps) == expected


def test_every_table_has_a_key_and_every_group_begins_with_its_time() -> None:
    """The merge relies on it."""
    for table in TABLES:
        assert table.keys
        first_of_group: dict[str, Column] = {}
        for column in table.columns:
            assert (column.rule is Rule.LATEST) == bool(column.group)
            first_of_group.setdefault(column.group, column)
        assert all(column.type is Type.INT for group, column in first_of_group.items() if group)
