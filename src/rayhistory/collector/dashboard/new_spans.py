"""The new profile spans of a list of tasks.

Before 2.55 Ray exports only the last span of a task in each second. The dashboard lists all of them, with everything
else about the tasks. Storing each list would repeat all earlier spans.
"""

from typing import Any

import msgspec


class _Profile(msgspec.Struct, omit_defaults=True):
    component_type: Any = None
    component_id: Any = None
    node_ip_address: Any = None
    events: list[msgspec.Raw] = []


class _Task(msgspec.Struct):
    task_id: str
    attempt_number: int
    job_id: Any
    profiling_data: _Profile | None = None

    def spans(self) -> dict[int, msgspec.Raw]:
        """Return the spans, keyed by a hash of the fields that identify them."""
        profile = self.profiling_data or _Profile()
        return {hash((self.task_id, self.attempt_number, bytes(span))): span for span in profile.events}

    def only_with(self, spans: list[msgspec.Raw]) -> "_Task":
        profile = msgspec.structs.replace(self.profiling_data or _Profile(), events=spans)
        return msgspec.structs.replace(self, profiling_data=profile)


class _Tasks(msgspec.Struct):
    result: list[_Task]


class _Data(msgspec.Struct):
    result: _Tasks


class _TaskList(msgspec.Struct):
    data: _Data


class NewSpans:
    """Reduces each list to the spans that the last stored list did not have."""

    def __init__(self) -> None:
        self._stored: set[int] = set()
        self._listed: set[int] = set()

    def find(self, body: bytes) -> bytes | None:
        """Return a list of tasks with new spans only; None if there are none, or if the response has another shape."""
        try:
            tasks = msgspec.json.decode(body, type=_TaskList).data.result.result
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        listed = [(task, task.spans()) for task in tasks]
        self._listed = {each for _, spans in listed for each in spans}
        new = [
            task.only_with([span for key, span in spans.items() if key not in self._stored])
            for task, spans in listed
            if spans.keys() - self._stored
        ]
        return msgspec.json.encode(_TaskList(_Data(_Tasks(new)))) if new else None

    def confirm(self) -> None:
        """Remember that the spans of the last list are stored."""
        self._stored = self._listed
