"""Events of many objects that are converted together."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rayhistory.events.event_batch import MIN_BYTES, EventBatch
from rayhistory.events.event_decoder import EventDecoder
from rayhistory.events.row_buffer import RowBuffer
from rayhistory.events.table_columns import TABLES_BY_NAME
from support.event_samples import lifecycle
from support.folding import RECORDED, as_lines

AT = "2026-11-15T19:18:40Z"
BROKEN: list[dict[str, Any]] = [
    lifecycle(taskId="short"),
    lifecycle(stateTransitions=[{"state": "NEW_STATE", "timestamp": AT}]),
    {"eventType": "UNHEARD_OF_EVENT", "timestamp": AT},
    {"eventType": "NODE_DEFINITION_EVENT", "timestamp": AT, "nodeDefinitionEvent": {"nodeId": "short"}},
    {"eventType": "DASHBOARD_SNAPSHOT", "dashboardSnapshot": {"uri": "/api/v0/tasks", "body": {"data": [7]}}},
]
NOT_UTF_8 = (
    b'{"eventType": "TASK_DEFINITION_EVENT", "timestamp": "%b", "taskDefinitionEvent": {"taskId": "%b", '
    b'"requiredResources": {"\xff": 1}}}\n' % (AT.encode(), b"a" * 48)
)
LINES = [*(as_lines([event]) for event in [*RECORDED, *BROKEN]), NOT_UTF_8]
objects = st.lists(st.lists(st.sampled_from(LINES), max_size=8), max_size=8)


def rows_of(contents: list[list[bytes]], min_bytes: int) -> dict[str, Any]:
    """Return the set of rows of each table, and all rows of gaps and times."""
    rows = RowBuffer()
    batch = EventBatch(rows, min_bytes)
    for number, lines in enumerate(contents):
        decoder = EventDecoder(f"object {number}", rows, None, batch)
        for line in lines:
            decoder.feed(line)
        decoder.finish()
    batch.flush()
    found: dict[str, Any] = {table: set(rows.rows(table)) for table in TABLES_BY_NAME}
    return found | {table: sorted(rows.rows(table), key=repr) for table in ("gaps", "life_signs")}


@settings(max_examples=25, deadline=None)
@given(objects, st.sampled_from([500, 3_000, MIN_BYTES]))
def test_objects_that_are_converted_together_have_the_rows_and_gaps_of_each(
    contents: list[list[bytes]], min_bytes: int
) -> None:
    assert rows_of(contents, min_bytes) == rows_of(contents, 0)


def test_gaps_belong_to_the_object_that_has_the_anomaly() -> None:
    broken = [as_lines([BROKEN[0]])], [NOT_UTF_8], [as_lines([BROKEN[3]])]
    gaps = rows_of([LINES[:3], broken[0], LINES[3:6], *broken[1:]], MIN_BYTES)["gaps"]
    assert [(source, code) for source, code, _, _ in gaps] == [
        ("object 1", "id_invalid"),
        ("object 3", "event_unreadable"),
        ("object 4", "id_invalid"),
    ]


def test_few_large_events_do_not_wait() -> None:
    rows = RowBuffer()
    batch = EventBatch(rows)
    decoder = EventDecoder("object", rows, None, batch)
    decoder.feed(as_lines([lifecycle(actorReprName="x" * MIN_BYTES)]))
    assert len(rows.rows("task_updates")) == 1
