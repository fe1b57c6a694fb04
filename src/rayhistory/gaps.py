"""Codes of gaps: everything that can be missing from a session or incomplete in it.

Programs compare codes, never prose. `gap_descriptions.py` describes each code for people.
"""

from enum import StrEnum


class GapCode(StrEnum):
    """The stable code of a gap. The table `gaps` stores it in its column `kind`."""

    EVENTS_DROPPED = "events_dropped"
    EVENTS_QUARANTINED = "events_quarantined"
    EVENTS_LATE = "events_late"
    EVENTS_REPEATED = "events_repeated"

    OBJECT_DISAPPEARED = "object_disappeared"
    OBJECT_TRUNCATED = "object_truncated"
    PACKED_EVENTS_DAMAGED = "packed_events_damaged"
    EVENT_LOG_TOO_LARGE = "event_log_too_large"
    EVENT_ARRAY_TOO_LARGE = "event_array_too_large"
    EVENT_ARRAY_UNREADABLE = "event_array_unreadable"
    LINE_TOO_LONG = "line_too_long"
    LINE_UNREADABLE = "line_unreadable"
    LINE_NOT_AN_EVENT = "line_not_an_event"

    EVENT_UNREADABLE = "event_unreadable"
    EVENT_NESTED_TOO_DEEPLY = "event_nested_too_deeply"
    EVENT_WITHOUT_TIMESTAMP = "event_without_timestamp"
    EVENT_FROM_FUTURE = "event_from_future"
    EVENT_TYPE_UNKNOWN = "event_type_unknown"
    EVENT_FIELD_UNKNOWN = "event_field_unknown"
    STATE_UNKNOWN = "state_unknown"
    TIMESTAMP_UNREADABLE = "timestamp_unreadable"
    ID_INVALID = "id_invalid"
    VALUE_INVALID = "value_invalid"
    ROW_WITHOUT_KEY = "row_without_key"

    EXPORT_RECORD_EMPTY = "export_record_empty"
    EXPORT_RECORD_UNEXPECTED = "export_record_unexpected"
    DASHBOARD_RESPONSE_EMPTY = "dashboard_response_empty"
    DASHBOARD_RESPONSE_TOO_LARGE = "dashboard_response_too_large"
    DASHBOARD_RESPONSE_UNREADABLE = "dashboard_response_unreadable"
    DASHBOARD_RESPONSE_UNEXPECTED = "dashboard_response_unexpected"
    DASHBOARD_LIST_TRUNCATED = "dashboard_list_truncated"
    DASHBOARD_LIST_INCOMPLETE = "dashboard_list_incomplete"

    TASK_WITHOUT_DEFINITION = "task_without_definition"
    TASK_WITHOUT_EXECUTION = "task_without_execution"
    TASK_EXECUTION_UNREPORTED = "task_execution_unreported"
    TABLE_EMPTY = "table_empty"
    TASK_CLOCK_SKEW = "task_clock_skew"
    TASK_OPEN_AT_SESSION_END = "task_open_at_session_end"
    ACTOR_OPEN_AT_SESSION_END = "actor_open_at_session_end"
    JOB_OPEN_AT_SESSION_END = "job_open_at_session_end"
    WORKER_OPEN_AT_SESSION_END = "worker_open_at_session_end"
    NODE_OPEN_AT_SESSION_END = "node_open_at_session_end"
