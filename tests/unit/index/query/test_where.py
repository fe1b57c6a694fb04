"""The grammar of conditions on rows."""

from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayhistory.errors import UsageError
from rayhistory.index.query.query import AllOf, AnyOf, Condition, Filter, Query
from rayhistory.index.query.query_params import parse_query
from rayhistory.index.query.query_sql import where_sql
from rayhistory.index.query.where import MAX_FILTERS, parse_where

A, B, C = (Filter(name, "=", "1") for name in "abc")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("state=FAILED", Filter("state", "=", "FAILED")),
        ("state != FAILED", Filter("state", "!=", "FAILED")),
        ("start_time_ms>=17", Filter("start_time_ms", ">=", "17")),
        ("start_time_ms<17", Filter("start_time_ms", "<", "17")),
        ("name~a=b", Filter("name", "contains", "a=b")),
        ("name^=stage", Filter("name", "prefix", "stage")),
        ("error_type=", Filter("error_type", "=", None)),
        ("error_type!=", Filter("error_type", "!=", None)),
        ("name = my task", Filter("name", "=", "my task")),
        ("name = land", Filter("name", "=", "land")),
        ("name=f(x)", Filter("name", "=", "f(x)")),
        ("name=f(x)) ", Filter("name", "=", "f(x))")),
        ("name = 'a and b'", Filter("name", "=", "a and b")),
        ('name = "it\'s"', Filter("name", "=", "it's")),
        (r"name = 'it\'s'", Filter("name", "=", "it's")),
        ("name = ''", Filter("name", "=", "")),
        ("a=1 and b=1", AllOf((A, B))),
        ("a=1 AND b=1 Or c=1", AnyOf((AllOf((A, B)), C))),
        ("a=1 and (b=1 or c=1)", AllOf((A, AnyOf((B, C))))),
        ("(a=1)or(b=1)", AnyOf((A, B))),
        ("(name=f(x) or a=1)", AnyOf((Filter("name", "=", "f(x)"), A))),
        ("error_type= and a=1", AllOf((Filter("error_type", "=", None), A))),
        ("error_type = or a=1", AnyOf((Filter("error_type", "=", None), A))),
    ],
)
def test_conditions_are_parsed(text: str, expected: Condition) -> None:
    assert parse_where(text) == expected


@pytest.mark.parametrize("text", ["", "name", "=1", "a=1 and", "a=1 and b", "(a=1", "a='1' x", "and a=1", "()"])
def test_invalid_conditions_are_refused_with_the_usage(text: str) -> None:
    with pytest.raises(UsageError, match="COLUMN OPERATOR VALUE"):
        parse_where(text)


def test_nesting_and_number_of_comparisons_are_limited() -> None:
    with pytest.raises(UsageError, match="nested"):
        parse_where("(" * 1000 + "a=1" + ")" * 1000)
    with pytest.raises(UsageError, match=f"at most {MAX_FILTERS}"):
        parse_query("tasks", where=[" or ".join(["name=1"] * (MAX_FILTERS + 1))])


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """A table with all combinations of three values in three columns."""
    with duckdb.connect(config={"threads": 1}) as database:
        database.execute(
            "CREATE TABLE t AS SELECT a::VARCHAR a, b::VARCHAR b, c::VARCHAR c "
            "FROM range(3) x(a), range(3) y(b), range(3) z(c)"
        )
        yield database


@settings(deadline=None, max_examples=50)
@given(tree=st.recursive(
    st.tuples(st.sampled_from("abc"), st.integers(0, 2)),
    lambda inner: st.tuples(st.sampled_from(["and", "or"]), inner, inner),
    max_leaves=8,
))  # fmt: skip
def test_expressions_select_the_rows_that_sql_selects(
    database: duckdb.DuckDBPyConnection, tree: tuple[Any, ...]
) -> None:
    """Every expression, written out with parentheses, selects what the same SQL selects."""

    def write(node: tuple[Any, ...], quote: str) -> str:
        if len(node) == 2:
            return f"{node[0]} = {quote}{node[1]}{quote}"
        return f"({write(node[1], quote)} {node[0]} {write(node[2], quote)})"

    types = dict.fromkeys("abc", "VARCHAR")
    where, values = where_sql(types, Query("t", filters=(parse_where(write(tree, "")),)))
    found = database.execute(f"SELECT * FROM t{where} ORDER BY ALL", values).fetchall()
    assert found == database.execute(f"SELECT * FROM t WHERE {write(tree, chr(39))} ORDER BY ALL").fetchall()
