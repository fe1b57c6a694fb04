"""Dispatch events to the functions that turn them into rows.

Nearly all events are about tasks. They are converted many at a time (`lifecycle_rows`, `task_rows`).
"""

from collections.abc import Callable, Sequence
from typing import cast

import msgspec
from msgspec import Raw

from rayhistory.events import entity_rows, event_types, lifecycle_rows, task_rows
from rayhistory.events.dashboard_responses import FAILED_TASKS_URI, TASK_SPANS_URI, add_dashboard_rows
from rayhistory.events.export_files import add_export_record
from rayhistory.events.row_buffer import Anomaly, RowBuffer
from rayhistory.events.state_api import add_span_rows, add_state_rows
from rayhistory.gaps import GapCode


def add_events(rows: RowBuffer, events: Sequence[event_types.Event], times: Sequence[int | None]) -> list[Anomaly]:
    """Add the rows of events, each with its time in nanoseconds. Return their anomalies."""
    lifecycles: list[event_types.TaskLifecycle] = []
    lifecycle_times: list[int] = []
    definitions: list[event_types.TaskDefinition] = []
    definition_times: list[int] = []
    profiles: list[event_types.TaskProfile] = []
    anomalies: list[Anomaly] = []
    known_times = cast("Sequence[int]", times) if all(times) else [ns or 0 for ns in times]
    for event, ns in zip(events, known_times, strict=True):
        if lifecycle := event.task_lifecycle_event or event.task_execution_event:
            lifecycles.append(lifecycle)
            lifecycle_times.append(ns)
        elif definition := event.task_definition_event or event.actor_task_definition_event:
            if definition is event.actor_task_definition_event:
                definition.task_type = "ACTOR_TASK"
            definitions.append(definition)
            definition_times.append(ns)
        elif event.task_profile_events:
            profiles.append(event.task_profile_events)
        elif anomaly := _add_other(rows, event, ns):
            anomalies.append(anomaly)
    anomalies += lifecycle_rows.add_lifecycles(rows, lifecycles, lifecycle_times)
    anomalies += task_rows.add_definitions(rows, definitions, definition_times)
    anomalies += task_rows.add_profiles(rows, profiles)
    return anomalies


def _add_other(rows: RowBuffer, event: event_types.Event, ns: int) -> Anomaly | None:
    for field, add in _HANDLERS.items():
        nested = getattr(event, field)
        if nested is not None:
            return add(rows, nested, ns)
    if event.platform_event is not event_types.NOTHING:
        _add_platform_event(rows, event, event.platform_event, ns)
        return None
    return GapCode.EVENT_TYPE_UNKNOWN, event.event_type


def _add_platform_event(rows: RowBuffer, event: event_types.Event, nested: Raw, ns: int) -> None:
    body = {
        "eventId": event.event_id,
        "sourceType": event.source_type,
        "eventType": event.event_type,
        "timestamp": event.timestamp,
        "severity": event.severity,
        "message": event.message,
        "platformEvent": nested,
    }
    rows.add("platform_events", event_id=event.event_id, ns=ns, body=msgspec.json.encode(body).decode())


def _add_dashboard_response(rows: RowBuffer, response: event_types.DashboardResponse, ns: int) -> Anomaly | None:
    if not response.uri or not response.body:
        return GapCode.DASHBOARD_RESPONSE_EMPTY, response.uri
    add = add_state_rows if response.only else _LIST_READERS.get(response.uri, add_dashboard_rows)
    if add is not add_span_rows:  # the collector has reduced this response to new spans
        rows.add("snapshots", uri=response.uri, ns=ns, body=str(response.body, "utf-8"))
    return add(rows, response.uri, msgspec.json.decode(response.body), ns)


_LIST_READERS = {FAILED_TASKS_URI: add_state_rows, TASK_SPANS_URI: add_span_rows}
"""Lists of tasks that are read in addition to events."""


def _add_export_record(rows: RowBuffer, record: event_types.ExportRecord, ns: int) -> Anomaly | None:
    if not record.line:
        return GapCode.EXPORT_RECORD_EMPTY, record.file
    return add_export_record(rows, msgspec.json.decode(record.line), ns)


_HANDLERS: dict[str, Callable[..., Anomaly | None]] = {
    "actor_lifecycle_event": entity_rows.add_actor_lifecycle,
    "actor_definition_event": entity_rows.add_actor_definition,
    "worker_lifecycle_event": entity_rows.add_worker_lifecycle,
    "worker_definition_event": entity_rows.add_worker_definition,
    "driver_job_definition_event": entity_rows.add_driver_job_definition,
    "driver_job_lifecycle_event": entity_rows.add_driver_job_lifecycle,
    "driver_job_execution_event": entity_rows.add_driver_job_lifecycle,
    "node_definition_event": entity_rows.add_node_definition,
    "node_lifecycle_event": entity_rows.add_node_lifecycle,
    "placement_group_definition_event": entity_rows.add_placement_group_definition,
    "placement_group_lifecycle_event": entity_rows.add_placement_group_lifecycle,
    "submission_job_definition_event": entity_rows.add_submission_job_definition,
    "submission_job_lifecycle_event": entity_rows.add_submission_job_lifecycle,
    "dashboard_snapshot": _add_dashboard_response,
    "export_record": _add_export_record,
}
