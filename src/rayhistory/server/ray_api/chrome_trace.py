"""Ray's task timeline in the Chrome trace format, which Perfetto also reads."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory import ids
from rayhistory.events.profile_spans import read_spans, span_identity
from rayhistory.index.query.query import Filter, Query, Row
from rayhistory.ray_env import ALL_SPANS_SINCE
from rayhistory.server.http.response_cache import LARGE_RESPONSE_ROWS, stream_json_response
from rayhistory.server.http.view_routes import view_route
from rayhistory.server.ray_api.state_options import check_id
from rayhistory.server.ray_api.state_rows import by_attempt, extra_data
from rayhistory.server.ray_api.task_queries import NO_DRIVERS, with_profiles
from rayhistory.server.view import SessionView

_TASK_COLUMNS = ("task_id", "attempt_number", "job_id", "func_or_class_name", "actor_id")
_COLORS = {
    "worker_idle": "cq_build_abandoned",
    "task": "rail_response",
    "task:deserialize_arguments": "rail_load",
    "task:execute": "rail_animation",
    "task:store_outputs": "rail_idle",
    "wait_for_function": "detailed_memory_dump",
    "ray.get": "good",
    "ray.put": "terrible",
    "ray.wait": "vsync_highlight_color",
    "submit_task": "background_memory_dump",
    "fetch_and_run_function": "detailed_memory_dump",
    "register_remote_function": "detailed_memory_dump",
}


async def timeline(request: Request, view: SessionView) -> Response:
    job_id = request.query_params.get("job_id")
    headers = {}
    if job_id:
        check_id(job_id, ids.JOB)
    if request.query_params.get("download") == "1":
        now = datetime.now(UTC).strftime("%Y-%m-%d_%H-%M-%S")
        headers["Content-Disposition"] = f'attachment; filename="timeline-{job_id or "all"}-{now}.json"'
    filters = (NO_DRIVERS, Filter("job_id", "=", job_id)) if job_id else (NO_DRIVERS,)
    query = Query("tasks", _TASK_COLUMNS, filters, ("task_id", "-attempt_number"))
    max_rows = await view.index.max_rows(query, LARGE_RESPONSE_ROWS)
    await view.index.prefetch(query, "profile_events")
    return await stream_json_response(request, _chunks(view, query), max_rows, headers)


async def _chunks(view: SessionView, query: Query) -> AsyncIterator[bytes]:
    """Yield the trace in batches, so that memory does not grow with the session."""
    writer = _TraceWriter(view)
    async for tasks in view.index.batches(query):
        async for chunk in writer.chunks(tasks):
            pending = [chunk]
            del chunk  # a waiting request must not hold its last chunk
            yield pending.pop()
    yield writer.finish()


class _TraceWriter:
    def __init__(self, view: SessionView) -> None:
        self._view = view
        self._ids = _TraceIds()
        self._prefix = b"["

    async def chunks(self, tasks: list[Row]) -> AsyncIterator[bytes]:
        """Yield the spans of a batch of tasks as JSON."""
        async for group, profiles in with_profiles(self._view, tasks):
            yield await asyncio.to_thread(self._encode_spans, group, profiles)

    def _encode_spans(self, tasks: list[Row], profiles: list[Row]) -> bytes:
        """Encode the spans and free the rows, because the client may read slowly."""
        found = [span for row in profiles for span in read_spans(row)]
        if self._view.is_before(ALL_SPANS_SINCE):
            found = list({_identity(span): span for span in found}.values())
        spans = by_attempt(sorted(found, key=_span_order))
        found.clear()
        profiles.clear()
        encoded = self._encode(
            [
                _event(task, span, self._ids)
                for task in tasks
                for span in spans.get((task["task_id"], task["attempt_number"]), [])
                if span["component_type"] in ("worker", "driver")
            ]
        )
        tasks.clear()
        return encoded

    def finish(self) -> bytes:
        names = self._encode(self._ids.metadata_events())
        return names + b"]" if names else b"[]"

    def _encode(self, events: list[Row]) -> bytes:
        if not events:
            return b""
        prefix, self._prefix = self._prefix, b", "
        return prefix + msgspec.json.encode(events)[1:-1]


class _TraceIds:
    """Assigns process and thread numbers of the trace to nodes and workers."""

    def __init__(self) -> None:
        self._nodes: dict[str, int] = {}
        self._workers: dict[tuple[int, str], int] = {}

    def ids_of(self, span: Row) -> tuple[int, int]:
        node = self._nodes.setdefault(span["node_ip"] or "", len(self._nodes))
        name = f"{span['component_type']}:{span['component_id'] or ''}"
        return node, self._workers.setdefault((node, name), len(self._workers))

    def metadata_events(self) -> list[Row]:
        nodes = [_metadata_event("process_name", pid, None, f"Node {ip}") for ip, pid in self._nodes.items()]
        return nodes + [_metadata_event("thread_name", pid, tid, name) for (pid, name), tid in self._workers.items()]


def _event(task: Row, span: Row, trace_ids: _TraceIds) -> Row:
    pid, tid = trace_ids.ids_of(span)
    event_name, extra = span["event_name"], extra_data(span["extra_data"])
    return {
        "cat": event_name,
        "name": extra.get("name", event_name),
        "pid": pid,
        "tid": tid,
        "ts": _microseconds(span["start_ns"]),
        "dur": _microseconds(span["end_ns"]) - _microseconds(span["start_ns"]),
        "cname": _COLORS.get(str(extra.get("cname", event_name)), "generic_work"),
        "args": extra
        | {
            "task_id": task["task_id"],
            "job_id": task["job_id"],
            "attempt_number": task["attempt_number"],
            "func_or_class_name": task["func_or_class_name"],
            "actor_id": task["actor_id"],
        },
        "ph": "X",
    }


def _identity(span: Row) -> tuple[object, ...]:
    """Return the identity of a span. Events and the dashboard's list of tasks may both report the same span."""
    return span["task_id"], span["attempt"], *span_identity(span["event_name"], span["start_ns"], span["end_ns"])


def _span_order(span: Row) -> tuple[str, int, int, int]:
    """Return the key by which spans are sorted, because the spans of one task attempt may come from several rows."""
    return span["task_id"], span["attempt"], span["end_ns"], span["start_ns"]


def _metadata_event(event_name: str, pid: int, tid: int | None, name: str) -> Row:
    return {"name": event_name, "args": {"name": name}, "pid": pid, "tid": tid, "ph": "M"}


ROUTES: list[BaseRoute] = [view_route("/api/v0/tasks/timeline", timeline, cache=False)]


def _microseconds(ns: int) -> float:
    """Convert a time as Ray does, via milliseconds, so that both round in the same way."""
    return ns / 1e6 * 1e3
