"""Start, end and state of a session, and its failures over time, from its tables."""

import asyncio
from typing import Any

from starlette.requests import Request

from rayhistory.index.query.query import Filter, Query, Row
from rayhistory.server.http.view_routes import resolver_of, selection_of
from rayhistory.server.ray_api.task_queries import NO_DRIVERS
from rayhistory.server.untrusted_json import decode_json
from rayhistory.server.view import SessionView
from rayhistory.web import FailureMarker, SessionOverview

MAX_MARKERS = 200
_MAX_NAMES, _MAX_NAME_LENGTH, _MAX_NAMED_TASKS = 3, 80, 1_000
_REPORTED_BY_RAY = Filter("closed_by_history", "=", False)
"""Excludes states that were inferred at session end, because they are not failures."""
_FAILED_TASKS = (Filter("state", "=", "FAILED"), Filter("end_time_ms", "!=", None), _REPORTED_BY_RAY, NO_DRIVERS)
_INTENDED_DEATHS = {"OUT_OF_SCOPE", "REF_DELETED", "RAY_KILL"}


async def session_start_ms(request: Request, view: SessionView) -> int:
    """Return the start time: from the start record, else the first event, else the session's name.

    The name comes last because its time zone is unknown.
    """
    resolver = resolver_of(request)
    entry = await resolver.entry(selection_of(request))
    record = await resolver.catalog.start(entry)
    first_ns = view.index.manifest.first_ns
    started_ms = record.started_ms if record else first_ns // 1_000_000 if first_ns else entry.started_ms
    return min(started_ms or view.last_ms, view.last_ms)


async def read_overview(view: SessionView, started_ms: int) -> SessionOverview:
    step = max(1, -(-(view.last_ms - started_ms + 1) // MAX_MARKERS))
    failed_jobs = (Filter("status", "=", "FAILED"), _REPORTED_BY_RAY)
    restarts = Query("actor_transitions", filters=(Filter("state", "=", "RESTARTING"),))
    markers = _Markers(started_ms, step)
    for kind, query, column, unit in (
        ("tasks", Query("tasks", filters=_FAILED_TASKS), "end_time_ms", 1),
        ("actors", restarts, "ns", 1_000_000),
        ("jobs", Query("jobs", filters=failed_jobs), "end_time", 1),
    ):
        steps = range(started_ms * unit, (started_ms + step * MAX_MARKERS) * unit, step * unit)
        for row in await view.index.histogram(query, column, steps):
            markers.add(kind, row["last"] // unit, row["count"])
    dead_actors = view.batches(
        "actors", Filter("state", "=", "DEAD"), _REPORTED_BY_RAY, columns=("end_time_ms", "death_cause")
    )
    async for rows in dead_actors:
        for at_ms in await asyncio.to_thread(_unintended_deaths, rows):
            markers.add("actors", at_ms)
    await _add_names(view, markers, failed_jobs)
    return SessionOverview(
        state=view.state,  # type: ignore[arg-type]
        started_ms=started_ms,
        last_ms=view.last_ms,
        gaps=view.index.manifest.counts.gaps,
        failures=markers.in_order(),
    )


async def _add_names(view: SessionView, markers: "_Markers", failed_jobs: tuple[Filter, ...]) -> None:
    """Add the names of failed jobs and tasks to their markers. Only a limited number of names is read."""
    jobs = await view.rows(
        "jobs", *failed_jobs, columns=("end_time", "submission_id", "job_id"), sort=("end_time",), limit=MAX_MARKERS
    )
    for job in jobs:
        markers.name(job["end_time"], f"job {job['submission_id'] or job['job_id']}")
    tasks = await view.rows(
        "tasks", *_FAILED_TASKS, columns=("end_time_ms", "name", "error_type"), sort=("end_time_ms",),
        limit=_MAX_NAMED_TASKS,
    )  # fmt: skip
    for task in tasks:
        markers.name(task["end_time_ms"], f"{task['name'] or 'task'} ({task['error_type'] or 'failed'})")


class _Markers:
    """At most MAX_MARKERS failure markers.

    Failures that are close in time share a marker, at the time of the last one.
    """

    def __init__(self, started_ms: int, step: int) -> None:
        self._started_ms = started_ms
        self._step = step
        self._markers: dict[int, FailureMarker] = {}

    def add(self, kind: str, at_ms: int | None, count: int = 1) -> None:
        if at_ms is None:
            return
        marker = self._markers.setdefault(self._bucket(at_ms), FailureMarker(at_ms=at_ms))
        marker.at_ms = max(marker.at_ms, at_ms)
        setattr(marker, kind, getattr(marker, kind) + count)

    def name(self, at_ms: int | None, text: str) -> None:
        """Add a name to the marker at this time, if there is one and it has few names."""
        marker = self._markers.get(self._bucket(at_ms)) if at_ms is not None else None
        text = text[:_MAX_NAME_LENGTH]
        if marker and text not in marker.names and len(marker.names) < _MAX_NAMES:
            marker.names.append(text)

    def _bucket(self, at_ms: int) -> int:
        return min(max((at_ms - self._started_ms) // self._step, 0), MAX_MARKERS - 1)

    def in_order(self) -> list[FailureMarker]:
        return [self._markers[bucket] for bucket in sorted(self._markers)]


def _unintended_deaths(actors: list[Row]) -> list[int | None]:
    return [actor["end_time_ms"] for actor in actors if is_unintended_death(decode_json(actor["death_cause"], {}))]


def is_unintended_death(cause: dict[str, Any]) -> bool:
    """Return True if an actor with this death cause died unintentionally. An empty cause counts as an intended death.

    If the worker exited, only the error message tells whether the exit was intended.
    """
    died = cause.get("actor_died_error_context")
    if not isinstance(died, dict):
        return bool(cause)
    return died.get("reason") not in _INTENDED_DEATHS and "INTENDED_" not in str(died.get("error_message"))
