"""The spans of a task's profile. They are stored as the text that Ray sent, and parsed when a timeline is requested."""

from typing import Any

import msgspec

_CAMEL_CASE = {"event_name": "eventName", "start_time": "startTime", "end_time": "endTime", "extra_data": "extraData"}


def camel_spans(text: str) -> str:
    """Convert field names to camelCase. Only names are replaced, because quotes inside strings are escaped."""
    for snake, camel in _CAMEL_CASE.items():
        text = text.replace(f'"{snake}"', f'"{camel}"')
    return text


def span_identity(name: str, start_ns: int, end_ns: int) -> tuple[str, float, float]:
    """Return the identity of a span, which is equal in all reports of it.

    Events have nanoseconds. The dashboard lists milliseconds as floating-point numbers, which are a little coarser.
    """
    return name, start_ns / 1e6, end_ns / 1e6


def read_spans(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Convert a row of profile_events to one row per span, ordered by end. Malformed spans are left out."""
    try:
        spans = msgspec.json.decode(row["spans"])
    except (msgspec.DecodeError, RecursionError):
        return []
    parsed = [span for each in (spans if isinstance(spans, list) else []) if (span := _span(row, each))]
    return sorted(parsed, key=lambda span: (span["end_ns"], span["start_ns"]))


def _span(row: dict[str, Any], span: Any) -> dict[str, Any] | None:
    try:
        return {
            "task_id": row["task_id"],
            "attempt": row["attempt"],
            "component_type": row["component_type"],
            "component_id": row["component_id"],
            "node_ip": row["node_ip"],
            "event_name": str(span["eventName"]),
            "start_ns": _ns(span["startTime"]),
            "end_ns": _ns(span["endTime"]),
            "extra_data": span.get("extraData") or None,
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _ns(value: Any) -> int:
    ns = int(value)
    if not -(2**63) <= ns < 2**63:
        raise ValueError(value)
    return ns
