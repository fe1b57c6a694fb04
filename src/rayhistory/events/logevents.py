"""Lines of Ray's event log files (`logs/events/event_*.log`), as its Python and its C++ parts write them."""

from typing import Any

import msgspec

from rayhistory.events.columns import Rows
from rayhistory.events.times import seconds


def add_log_lines(out: Rows, data: bytes) -> int:
    """Adds each line that is an event; returns the number of those that are not."""
    unreadable = 0
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            event = msgspec.json.decode(line)
            out.add("cluster_events", _row(event))
        except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError, AttributeError):
            unreadable += 1
    return unreadable


def _row(event: Any) -> tuple[object, ...]:
    fields = event.get("custom_fields") or {}
    return (
        str(event["event_id"]),
        str(event.get("source_type") or "") or None,
        str(event.get("source_hostname") or event.get("host_name") or "") or None,
        str(event.get("source_pid") or event.get("pid") or "") or None,
        str(event.get("severity") or "") or None,
        str(event.get("label") or "") or None,
        str(event.get("message") or "").replace("\\n", "\n").replace("\\r", "\r") or None,
        str(fields.get("job_id") or "") or None,
        str(fields.get("node_id") or "") or None,
        seconds(event["timestamp"]),
        msgspec.json.encode(fields, order="sorted").decode() if fields else None,
    )
