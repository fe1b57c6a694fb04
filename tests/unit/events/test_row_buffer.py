"""Rows are named: a row with other columns than its table raises before anything is added."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rayhistory
from rayhistory.events import event_rows, lifecycle_rows
from rayhistory.events.event_decoder import EventDecoder
from rayhistory.events.row_buffer import MALFORMED_ERRORS, ColumnMismatch, RowBuffer
from rayhistory.events.table_columns import TABLES, TABLES_BY_NAME, TASK_TABLES
from rayhistory.gaps import GapCode
from support.folding import RECORDED, as_lines

SOURCE = Path(rayhistory.__file__).parent


def row_counts(rows: RowBuffer) -> dict[str, set[int]]:
    return {table: set(map(len, columns.values())) for table, columns in rows.columns.items()}


EMPTY = {table.name: {0} for table in TABLES}


@pytest.mark.parametrize(
    ("table", "values"),
    [
        ("node_transitions", {"node_id": "n", "ns": 1, "state": "ALIVE", "sub_state": None, "death_reason": None}),
        ("workers", {"worker_id": "w", "node": "n"}),
        ("workers", {"node_id": "n"}),
        ("workers", {}),
        ("no_such_table", {"worker_id": "w"}),
    ],
    ids=["missing key column", "unknown column", "missing id", "no columns", "unknown table"],
)
def test_wrong_row_raises_and_adds_nothing(table: str, values: dict[str, object]) -> None:
    rows = RowBuffer()
    with pytest.raises(ColumnMismatch, match=table):
        rows.add(table, **values)
    assert row_counts(rows) == EMPTY
    assert rows.take_anomalies() == []


@pytest.mark.parametrize(
    "columns",
    [
        {name: ["x"] for name in TABLES_BY_NAME["profile_events"].names[:-1]},
        {name: ["x"] for name in TABLES_BY_NAME["profile_events"].names} | {"another": ["x"]},
        {name: ["x"] for name in TABLES_BY_NAME["profile_events"].names} | {"spans": ["x", "y"]},
    ],
    ids=["missing column", "unknown column", "different lengths"],
)
def test_wrong_columns_raise_and_add_nothing(columns: dict[str, list[object]]) -> None:
    rows = RowBuffer()
    with pytest.raises(ColumnMismatch, match="profile_events"):
        rows.extend("profile_events", columns)
    assert row_counts(rows) == EMPTY


def test_mismatch_is_no_error_of_malformed_events() -> None:
    assert not issubclass(ColumnMismatch, MALFORMED_ERRORS)


NODE_EVENT = next(event for event in RECORDED if event["eventType"] == "NODE_DEFINITION_EVENT")
TASK_EVENT = next(event for event in RECORDED if event["eventType"] == "TASK_LIFECYCLE_EVENT")


@pytest.mark.parametrize("feed", ["lines", "array"])
@pytest.mark.parametrize("event", [NODE_EVENT, TASK_EVENT], ids=["node", "task"])
def test_decoder_does_not_count_a_wrong_row_as_a_gap(
    monkeypatch: pytest.MonkeyPatch, event: dict[str, Any], feed: str
) -> None:
    def add_wrong_row(rows: RowBuffer, *_: object) -> None:
        rows.add("node_definitions", node_id="n", host="h")

    monkeypatch.setitem(event_rows._HANDLERS, "node_definition_event", add_wrong_row)
    monkeypatch.setattr(lifecycle_rows, "_STATE_COLUMNS", tuple(f"{name}_x" for name in lifecycle_rows._STATE_COLUMNS))
    decoder = EventDecoder("source", RowBuffer())
    with pytest.raises(ColumnMismatch):
        if feed == "lines":
            decoder.feed(as_lines([event]))
        else:
            decoder.feed_array(json.dumps([event]).encode())
    assert row_counts(decoder.rows) == EMPTY


def test_columns_that_are_not_given_are_null() -> None:
    rows = RowBuffer()
    rows.add("node_definitions", resources="{}", node_id="n")
    (row,) = rows.rows("node_definitions")
    given = {name: value for name, value in zip(TABLES_BY_NAME["node_definitions"].names, row, strict=True) if value}
    assert given == {"node_id": "n", "resources": "{}"}


@pytest.mark.parametrize(
    ("values", "anomalies"),
    [
        ({"worker_id": None}, [(GapCode.ROW_WITHOUT_KEY, "workers")]),
        ({"worker_id": ""}, [(GapCode.ROW_WITHOUT_KEY, "workers")]),
        ({"worker_id": 7}, [(GapCode.ROW_WITHOUT_KEY, "workers")]),
        ({"worker_id": "w", "pid": "7"}, [(GapCode.VALUE_INVALID, "workers.pid")]),
        ({"worker_id": "w", "pid": True}, [(GapCode.VALUE_INVALID, "workers.pid")]),
        ({"worker_id": "w", "pid": 2**63}, [(GapCode.VALUE_INVALID, "workers.pid")]),
        ({"worker_id": "w", "pid": 2**63 - 1}, []),
    ],
    ids=str,
)
def test_invalid_values_are_left_out_and_counted(
    values: dict[str, object], anomalies: list[tuple[GapCode, str]]
) -> None:
    rows = RowBuffer()
    rows.add("workers", **values)
    assert rows.take_anomalies() == anomalies
    assert len(rows.rows("workers")) == (anomalies[:1] != [(GapCode.ROW_WITHOUT_KEY, "workers")])
    if rows.rows("workers"):
        assert rows.columns["workers"]["pid"] == [None if anomalies else values["pid"]]


def add_calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Every call of RowBuffer.add in the source, with its position and its table."""
    for path in sorted([*SOURCE.glob("events/*.py"), *SOURCE.glob("index/**/*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add":
                table = node.args[0] if node.args else None
                if isinstance(table, ast.Constant) and node.keywords:
                    yield f"{path.relative_to(SOURCE)}:{node.lineno}", str(table.value), node


def test_every_row_in_the_source_has_columns_of_its_table() -> None:
    """Finds a slip in code that no test runs."""
    tables = set()
    for position, table, call in add_calls():
        given = {keyword.arg for keyword in call.keywords if keyword.arg}
        assert table in TABLES_BY_NAME, position
        assert given <= set(TABLES_BY_NAME[table].names), position
        if all(keyword.arg for keyword in call.keywords):
            assert set(TABLES_BY_NAME[table].keys) <= given, position
        tables.add(table)
    assert tables == set(TABLES_BY_NAME), "the search finds the rows of every table"
    assert set(TASK_TABLES) <= tables
