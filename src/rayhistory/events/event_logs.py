"""Rows of Ray's event log files (`logs/events/event_*.log`), which Ray's Python and C++ code write."""

from typing import Any

import msgspec

from rayhistory.events.row_buffer import MALFORMED_ERRORS, RowBuffer
from rayhistory.events.times import valid_seconds


def add_log_lines(rows: RowBuffer, data: bytes) -> int:
    """Add each line that is an event. Return the number of other lines."""
    unreadable = 0
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            _add_line(rows, msgspec.json.decode(line))
        except MALFORMED_ERRORS:
            unreadable += 1
    return unreadable


def _add_line(rows: RowBuffer, event: Any) -> None:
    fields = event.get("custom_fields") or {}
    rows.add(
        "cluster_events",
        event_id=str(event["event_id"]),
        source_type=_text(event.get("source_type")),
        hostname=_text(event.get("source_hostname") or event.get("host_name")),
        pid=_text(event.get("source_pid") or event.get("pid")),
        severity=_text(event.get("severity")),
        label=_text(event.get("label")),
        message=str(event.get("message") or "").replace("\\n", "\n").replace("\\r", "\r") or None,
        job_id=_text(fields.get("job_id")),
        node_id=_text(fields.get("node_id")),
        timestamp_s=valid_seconds(event["timestamp"]),
        custom_fields=msgspec.json.encode(fields, order="sorted").decode() if fields else None,
    )


def _text(value: object) -> str | None:
    return str(value or "") or None
