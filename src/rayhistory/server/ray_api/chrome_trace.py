"""Ray's timeline: the spans inside tasks, in the format that Chrome's tracing and Perfetto read."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory import ids
from rayhistory.index.query import Filter, Query, Row
from rayhistory.server.kept import FEW, answer_in_pieces
from rayhistory.server.routes.state import NO_DRIVERS, profiles_of
from rayhistory.server.routing import get
from rayhistory.server.state_options import check_id
from rayhistory.server.state_rows import by_attempt, extra_data
from rayhistory.server.view import SessionView

_TASK_COLUMNS = ("task_id", "attempt_number", "job_id", "func_or_class_name", "actor_id")
_COLOURS = {
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
        moment = datetime.now(UTC).strftime("%Y-%m-%d_%H-%M-%S")
        headers["Content-Disposition"] = f'attachment; filename="timeline-{job_id or "all"}-{moment}.json"'
    filters = (NO_DRIVERS, Filter("job_id", "=", job_id)) if job_id else (NO_DRIVERS,)
    in_rays_order = Query("tasks", _TASK_COLUMNS, filters, ("task_id", "-attempt_number"))
    most = await view.index.most(in_rays_order, FEW)
    await view.index.fetched(in_rays_order, "profile_events")
    return await answer_in_pieces(request, _pieces(view, in_rays_order), most, headers)


async def _pieces(view: SessionView, query: Query) -> AsyncIterator[bytes]:
    """A session of any size needs no more memory than its largest piece."""
    writer = _Writer(view)
    async for tasks in view.index.portions(query):
        yield await writer.piece(tasks)
    yield writer.end()


class _Writer:
    def __init__(self, view: SessionView) -> None:
        self._view = view
        self._places = _Places()
        self._begin = b"["

    async def piece(self, tasks: list[Row]) -> bytes:
        """The spans of these tasks, if there are any; nobody needs the tasks after that."""
        found = by_attempt(await self._view.spans(*await profiles_of(self._view, tasks)))
        events = [
            _event(task, span, self._places)
            for task in tasks
            for span in found.get((task["task_id"], task["attempt_number"]), [])
            if span["component_type"] in ("worker", "driver")
        ]
        tasks.clear()
        return self._written(events)

    def end(self) -> bytes:
        names = self._written(self._places.names())
        return names + b"]" if names else b"[]"

    def _written(self, events: list[Row]) -> bytes:
        if not events:
            return b""
        begin, self._begin = self._begin, b", "
        return begin + msgspec.json.encode(events)[1:-1]


class _Places:
    """Numbers for nodes and workers: the format has numbers where Ray has addresses and ids."""

    def __init__(self) -> None:
        self._nodes: dict[str, int] = {}
        self._workers: dict[tuple[int, str], int] = {}

    def of(self, span: Row) -> tuple[int, int]:
        node = self._nodes.setdefault(span["node_ip"] or "", len(self._nodes))
        name = f"{span['component_type']}:{span['component_id'] or ''}"
        return node, self._workers.setdefault((node, name), len(self._workers))

    def names(self) -> list[Row]:
        nodes = [_name("process_name", pid, None, f"Node {ip}") for ip, pid in self._nodes.items()]
        return nodes + [_name("thread_name", pid, tid, name) for (pid, name), tid in self._workers.items()]


def _event(task: Row, span: Row, places: _Places) -> Row:
    pid, tid = places.of(span)
    kind, extra = span["event_name"], extra_data(span["extra_data"])
    return {
        "cat": kind,
        "name": extra.get("name", kind),
        "pid": pid,
        "tid": tid,
        "ts": span["start_ns"] / 1e3,
        "dur": (span["end_ns"] - span["start_ns"]) / 1e3,
        "cname": _COLOURS.get(str(extra.get("cname", kind)), "generic_work"),
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


def _name(what: str, pid: int, tid: int | None, name: str) -> Row:
    return {"name": what, "args": {"name": name}, "pid": pid, "tid": tid, "ph": "M"}


ROUTES: list[BaseRoute] = [get("/api/v0/tasks/timeline", timeline, keep=False)]
