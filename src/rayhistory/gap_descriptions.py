"""Descriptions of gaps, for people: meaning of each code, and how to avoid it. The prose may change."""

from collections.abc import Iterable

import msgspec

from rayhistory.gaps import GapCode


class GapKind(msgspec.Struct, frozen=True):
    """The description of one code of gaps, for people."""

    code: str
    singular: str
    """The summary of one occurrence."""
    plural: str
    """The summary of several occurrences; `{count}` is their number."""
    meaning: str
    remedy: str
    """How to avoid the gap."""
    is_loss: bool = True
    """True if data is missing or wrong. False if the code is informational and the session is complete."""

    def summary(self, count: int) -> str:
        """One line for a number of occurrences: "2 tasks were still running when the cluster ended"."""
        return (self.singular if count == 1 else self.plural).format(count=f"{count:,}")


def describe(code: str) -> GapKind:
    """Return the description of a code. Unknown codes of later releases get a general description."""
    return _KINDS.get(code) or GapKind(
        code=code,
        singular=f"1 gap of the unknown kind {_braces_escaped(code)}",
        plural=f"{{count}} gaps of the unknown kind {_braces_escaped(code)}",
        meaning="This release does not know the code. The index was written by another release.",
        remedy="Read the session with the release that indexed it, or a later one.",
    )


def is_complete(codes: Iterable[str]) -> bool:
    """Return True if none of the codes means a loss."""
    return not any(describe(code).is_loss for code in codes)


def _braces_escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


_REPORT = "Report it as an issue, with the detail shown here and the Ray version."
_UPGRADE = "Upgrade the history server to a release that knows this version of Ray, then index the session again."
_CHECK_STORE = "Check the object for truncation or damage; copy it again if another copy exists."
_NOT_NEEDED = "Nothing needs to be done."
_SHUT_DOWN = "End the job and let Ray shut down (`ray stop`) before the nodes are removed."


def _inferred(thing: str, state: str) -> str:
    return (
        f"Ray reported no end of the {thing}, because it exports nothing while it shuts down. "
        f"Its end was inferred at session end, and its state is {state}."
    )


_KINDS: dict[str, GapKind] = {
    kind.code: kind
    for kind in (
        GapKind(
            GapCode.EVENTS_DROPPED,
            "1 event was dropped by a collector",
            "{count} events were dropped by a collector",
            "A file of the collector's spool was damaged or deleted before its upload. "
            "Lost dashboard responses and metrics count, too.",
            "Check the spool's disk and the connection to the store. Exclude the spool from cleanup jobs.",
        ),
        GapKind(
            GapCode.EVENTS_QUARANTINED,
            "1 event was quarantined by a collector",
            "{count} events were quarantined by a collector",
            "The collector received an event that it could not parse. It is stored in the quarantine on the node.",
            "The original bytes are in the quarantine directory beside the collector's spool.",
        ),
        GapKind(
            GapCode.EVENTS_LATE,
            "1 event was uploaded after its node's collector had finished",
            "{count} events were uploaded after their node's collector had finished",
            "The event reached the store after the node's collector had counted its events. It is in the index like "
            "any other.",
            _NOT_NEEDED,
            is_loss=False,
        ),
        GapKind(
            GapCode.EVENTS_REPEATED,
            "1 event was received more than once",
            "{count} events were received more than once",
            "Ray sends a batch again when it gets no response in time. Repeated events are merged.",
            _NOT_NEEDED,
            is_loss=False,
        ),
        GapKind(
            GapCode.OBJECT_DISAPPEARED,
            "1 object was deleted while the session was indexed",
            "{count} objects were deleted while the session was indexed",
            "The object was listed, but was no longer in the store when it was read.",
            "Exclude the prefix from lifecycle rules and other cleanup, or index the session again.",
        ),
        GapKind(
            GapCode.OBJECT_TRUNCATED,
            "1 compressed object is truncated or damaged",
            "{count} compressed objects are truncated or damaged",
            "The data before the damage was read. The rest of the object could not be decompressed.",
            _CHECK_STORE,
        ),
        GapKind(
            GapCode.PACKED_EVENTS_DAMAGED,
            "1 stream of events in packs is damaged",
            "{count} streams of events in packs are damaged",
            "The bytes of the stream are not compressed events, so none of them could be read.",
            _CHECK_STORE,
        ),
        GapKind(
            GapCode.EVENT_LOG_TOO_LARGE,
            "1 event log of Ray is too large, only its beginning was read",
            "{count} event logs of Ray are too large, only their beginning was read",
            "Event logs are read up to 128 MiB. Cluster events after that are missing; the log itself is complete.",
            "Read the rest on the Logs page, and configure log rotation in Ray.",
        ),
        GapKind(
            GapCode.EVENT_ARRAY_TOO_LARGE,
            "1 JSON array of events is too large and was skipped",
            "{count} JSON arrays of events are too large and were skipped",
            "A JSON array is read as a whole, and only up to 128 MiB.",
            "Write the events in smaller batches, or as JSON Lines.",
        ),
        GapKind(
            GapCode.EVENT_ARRAY_UNREADABLE,
            "1 JSON array of events could not be parsed",
            "{count} JSON arrays of events could not be parsed",
            "The object is not valid JSON, so none of its events could be read.",
            _CHECK_STORE,
        ),
        GapKind(
            GapCode.LINE_TOO_LONG,
            "1 line is too long and was skipped",
            "{count} lines are too long and were skipped",
            "A line of events is read only up to 128 MiB.",
            _CHECK_STORE,
        ),
        GapKind(
            GapCode.LINE_UNREADABLE,
            "1 line could not be parsed",
            "{count} lines could not be parsed",
            "The line is not valid JSON. A truncated upload or a full disk leaves such a line at the end.",
            _CHECK_STORE,
        ),
        GapKind(
            GapCode.LINE_NOT_AN_EVENT,
            "1 line is valid JSON but not an event",
            "{count} lines are valid JSON but not events",
            "An event is a JSON object. The line has another JSON value and was skipped.",
            "Store nothing but the collector's objects below the session's prefix.",
        ),
        GapKind(
            GapCode.EVENT_UNREADABLE,
            "1 event could not be converted to rows",
            "{count} events could not be converted to rows",
            "The event has an unexpected shape and was skipped. The detail has its type and the error.",
            _REPORT,
        ),
        GapKind(
            GapCode.EVENT_NESTED_TOO_DEEPLY,
            "1 event is nested too deeply and was skipped",
            "{count} events are nested too deeply and were skipped",
            "The JSON of the event has more levels than the parser accepts.",
            _REPORT,
        ),
        GapKind(
            GapCode.EVENT_WITHOUT_TIMESTAMP,
            "1 event has no readable timestamp",
            "{count} events have no readable timestamp",
            "The event was read, but its time is unknown.",
            _REPORT,
        ),
        GapKind(
            GapCode.EVENT_FROM_FUTURE,
            "1 event has a time in the future",
            "{count} events have a time in the future",
            "The event is later than the object that contains it, so the clock of its node was wrong. Its times are "
            "shown as reported. The end of the session does not depend on it.",
            "Synchronize the clocks of the nodes (NTP or chrony).",
        ),
        GapKind(
            GapCode.EVENT_TYPE_UNKNOWN,
            "1 event has an unknown type and was skipped",
            "{count} events have an unknown type and were skipped",
            "A later version of Ray added the type that the detail names.",
            _UPGRADE,
        ),
        GapKind(
            GapCode.EVENT_FIELD_UNKNOWN,
            "1 event has an unknown field, which was ignored",
            "{count} events have an unknown field, which was ignored",
            "A later version of Ray added the field that the detail names. The rest of the event was read.",
            _UPGRADE,
        ),
        GapKind(
            GapCode.STATE_UNKNOWN,
            "1 state transition has an unknown state and was ignored",
            "{count} state transitions have an unknown state and were ignored",
            "A later version of Ray added the state that the detail names. The rest of the event was read.",
            _UPGRADE,
        ),
        GapKind(
            GapCode.TIMESTAMP_UNREADABLE,
            "1 state transition has no readable timestamp and was ignored",
            "{count} state transitions have no readable timestamp and were ignored",
            "Without its time a transition cannot be ordered. The rest of the event was read.",
            _REPORT,
        ),
        GapKind(
            GapCode.ID_INVALID,
            "1 event has an invalid id and was skipped",
            "{count} events have an invalid id and were skipped",
            "The id in the detail has a wrong length or invalid characters, so the event cannot be assigned.",
            _REPORT,
        ),
        GapKind(
            GapCode.VALUE_INVALID,
            "1 value does not fit its column and was left out",
            "{count} values do not fit their column and were left out",
            "The value has the wrong type or is out of range. The rest of the row was stored.",
            _REPORT,
        ),
        GapKind(
            GapCode.ROW_WITHOUT_KEY,
            "1 row has no valid key and was left out",
            "{count} rows have no valid key and were left out",
            "The id, the attempt or the time that identifies the row is missing or invalid.",
            _REPORT,
        ),
        GapKind(
            GapCode.EXPORT_RECORD_EMPTY,
            "1 export record is empty",
            "{count} export records are empty",
            "The stored record does not contain the line of Ray's export file.",
            _REPORT,
        ),
        GapKind(
            GapCode.EXPORT_RECORD_UNEXPECTED,
            "1 export record has an unexpected shape and was skipped",
            "{count} export records have an unexpected shape and were skipped",
            "The line of Ray's export file has other fields than expected. The detail has the error.",
            _UPGRADE,
        ),
        GapKind(
            GapCode.DASHBOARD_RESPONSE_EMPTY,
            "1 dashboard response is empty",
            "{count} dashboard responses are empty",
            "The record has no path or no body.",
            _REPORT,
        ),
        GapKind(
            GapCode.DASHBOARD_RESPONSE_TOO_LARGE,
            "1 dashboard response is too large and was skipped",
            "{count} dashboard responses are too large and were skipped",
            "A dashboard response is read only up to 128 MiB.",
            _NOT_NEEDED,
        ),
        GapKind(
            GapCode.DASHBOARD_RESPONSE_UNREADABLE,
            "1 dashboard response could not be parsed",
            "{count} dashboard responses could not be parsed",
            "The stored body is not valid JSON.",
            _CHECK_STORE,
        ),
        GapKind(
            GapCode.DASHBOARD_RESPONSE_UNEXPECTED,
            "1 dashboard response has an unexpected shape",
            "{count} dashboard responses have an unexpected shape",
            "The response is served as it was stored, but its jobs, workers, nodes or placement groups are missing.",
            _UPGRADE,
        ),
        GapKind(
            GapCode.DASHBOARD_LIST_TRUNCATED,
            "1 list of the dashboard was truncated",
            "{count} lists of the dashboard were truncated",
            "The session was made from a running cluster's dashboard, which lists at most 10,000 entries at once.",
            "Run a collector beside the cluster, because events have no such limit.",
        ),
        GapKind(
            GapCode.DASHBOARD_LIST_INCOMPLETE,
            "1 list of the dashboard is incomplete",
            "{count} lists of the dashboard are incomplete",
            "The session was made from a running cluster's dashboard, which could not reach all of its nodes.",
            "Take the snapshot again, or run a collector beside the cluster.",
        ),
        GapKind(
            GapCode.TASK_WITHOUT_DEFINITION,
            "1 task has no name or error: its driver did not export events",
            "{count} tasks have no name or error: their driver did not export events",
            "Only the worker's events about the task were recorded. The process that submitted it ran without the "
            "settings that make Ray export events, or was killed before it sent them. Errors that the worker did not "
            "report are missing. The end of a task is known only if the worker reported it.",
            "Start the head with the `--system-config` that `rayhistory env` prints, because it reaches every "
            "driver. Otherwise set the variables of `rayhistory env` in the environment of every driver.",
        ),
        GapKind(
            GapCode.TASK_WITHOUT_EXECUTION,
            "1 task has no start time, worker process or log range: its worker's events did not arrive",
            "{count} tasks have no start time, worker process or log range: their workers' events did not arrive",
            "Only the owner's events about the task were recorded, although its worker lived long enough to report "
            "the rest. The worker's node has no collector, or was lost before its collector had uploaded the events.",
            "Run a collector beside every node, including worker nodes.",
        ),
        GapKind(
            GapCode.TASK_EXECUTION_UNREPORTED,
            "1 task has no start time or worker process: its worker ended before it reported them to Ray",
            "{count} tasks have no start time or worker process: their workers ended before they reported them to Ray",
            "A worker reports every second. If it crashes or is killed, its last reports are lost. This includes "
            "workers of actors whose owner exits. The dashboard of the running cluster did not show them either.",
            "Let actors exit by themselves (`ray.actor.exit_actor()`) instead of killing them.",
            is_loss=False,
        ),
        GapKind(
            GapCode.TABLE_EMPTY,
            "1 table is empty: no data for it was recorded",
            "{count} tables are empty: no data for them was recorded",
            "Every cluster has nodes, and every job has tasks. The session has no events or export files about "
            "nodes, or none about tasks. Logs and dashboard responses may exist.",
            "Run a collector with the variables that `rayhistory env` prints. For `rayhistory import-dir`, set "
            "RAY_enable_export_api_write=1 before Ray starts.",
        ),
        GapKind(
            GapCode.TASK_CLOCK_SKEW,
            "1 task has times from clocks more than a second apart",
            "{count} tasks have times from clocks more than a second apart",
            "The node that submitted the task and the node that ran it disagree about the time. Durations are inexact.",
            "Synchronize the clocks of the nodes (NTP or chrony).",
        ),
        GapKind(
            GapCode.TASK_OPEN_AT_SESSION_END,
            "1 task was still running when the cluster ended",
            "{count} tasks were still running when the cluster ended",
            _inferred("task", "FAILED"),
            _SHUT_DOWN,
            is_loss=False,
        ),
        GapKind(
            GapCode.ACTOR_OPEN_AT_SESSION_END,
            "1 actor was still alive when the cluster ended",
            "{count} actors were still alive when the cluster ended",
            _inferred("actor", "DEAD"),
            _SHUT_DOWN,
            is_loss=False,
        ),
        GapKind(
            GapCode.JOB_OPEN_AT_SESSION_END,
            "1 job was still running when the cluster ended",
            "{count} jobs were still running when the cluster ended",
            _inferred("job", "STOPPED, or FAILED if the cluster vanished"),
            _SHUT_DOWN,
            is_loss=False,
        ),
        GapKind(
            GapCode.WORKER_OPEN_AT_SESSION_END,
            "1 worker process was still alive when the cluster ended",
            "{count} worker processes were still alive when the cluster ended",
            _inferred("worker process", "dead"),
            _NOT_NEEDED,
            is_loss=False,
        ),
        GapKind(
            GapCode.NODE_OPEN_AT_SESSION_END,
            "1 node was still alive when the cluster ended",
            "{count} nodes were still alive when the cluster ended",
            _inferred("node", "DEAD"),
            _NOT_NEEDED,
            is_loss=False,
        ),
    )
}

INFORMATIONAL_CODES = tuple(code for code in GapCode if not _KINDS[code].is_loss)
"""Codes that are shown but do not count as gaps, because nothing is missing."""
