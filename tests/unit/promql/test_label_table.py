"""Labels as columns behave as a list of labels, and are filtered and grouped at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayhistory.promql.label_table import LabelTable, concatenate_tables, without_names
from rayhistory.promql.labels import labels_of
from rayhistory.promql.values import group_rows

ROWS = [
    (("__name__", "up"), ("node", "a")),
    (("__name__", "up"), ("node", "b"), ("zone", "x")),
    (("__name__", "up"), ("zone", "x")),
    (),
]


def test_table_is_the_sequence_of_its_labels() -> None:
    table = LabelTable.of(ROWS)
    assert list(table) == ROWS
    assert [table[position] for position in range(len(table))] == ROWS
    assert list(table[1:3]) == ROWS[1:3]
    assert list(LabelTable({}, 2)) == [(), ()]


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.sampled_from(["x", "y", "é"])), max_size=12))
def test_order_of_labels_is_that_of_the_sequence(rows: list[dict[str, str]]) -> None:
    """Also if some series lack a label."""
    labels = [labels_of(row) for row in rows]
    found = LabelTable.of(labels).sorted_rows().tolist()
    assert found == sorted(range(len(labels)), key=labels.__getitem__)


def test_rows_are_taken_by_position_and_by_mask() -> None:
    table = LabelTable.of(ROWS)
    assert list(table.take(np.array([2, 0]))) == [ROWS[2], ROWS[0]]
    assert list(table.take(np.array([False, True, False, True]))) == [ROWS[1], ROWS[3]]


def test_groups_equal_those_of_single_labels() -> None:
    table = LabelTable.of(ROWS * 3).only(["zone"])
    labels, rows = group_rows(table)
    expected_labels, expected_rows = group_rows(list(table))
    assert list(labels) == expected_labels
    assert [each.tolist() for each in rows] == [each.tolist() for each in expected_rows]
    assert not table.are_unique()
    assert LabelTable.of(ROWS).are_unique()


def test_many_columns_with_many_values_are_grouped() -> None:
    """The numbers of all columns together exceed 64 bits."""
    rows = [tuple((f"l{column}", f"v{(row * 7) % 1000}") for column in range(9)) for row in range(1000)]
    labels, _ = group_rows(LabelTable.of([*rows, rows[0]]))
    assert list(labels) == rows


@pytest.mark.parametrize(("name", "expected"), [("node", [False, True, False, False]), ("missing", [False] * 4)])
def test_series_are_found_by_a_predicate(name: str, expected: list[bool]) -> None:
    assert LabelTable.of(ROWS).where(name, lambda text: text == "b").tolist() == expected


def test_missing_labels_are_empty() -> None:
    assert LabelTable.of(ROWS).where("zone", lambda text: not text).tolist() == [True, False, False, True]
    assert LabelTable.of(ROWS).where("other", lambda text: not text).all()


def test_tables_with_other_columns_are_joined() -> None:
    joined = concatenate_tables([LabelTable.of(ROWS[:1]), LabelTable.of(ROWS[1:])])
    assert list(joined) == ROWS


def test_metric_names_are_dropped() -> None:
    assert list(without_names(LabelTable.of(ROWS))) == without_names(ROWS)
