"""The course of a session, for a slider over it: from when to when it is known, and when something failed in it."""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.index.query import Filter, Query, Row
from rayhistory.server.answers import json_answer, parsed
from rayhistory.server.routes.state import NO_DRIVERS
from rayhistory.server.routing import get, own_answer_to, resolver_of, selection_of
from rayhistory.server.view import SessionView
from rayhistory.web import Course, Mark

MOST_MARKS = 200
_BY_RAY = Filter("closed_by_history", "=", False)
"""What we closed because the session was over did not fail."""
_FAILED = (Filter("state", "=", "FAILED"), Filter("end_time_ms", "!=", None), _BY_RAY, NO_DRIVERS)
_MEANT = {"OUT_OF_SCOPE", "REF_DELETED", "RAY_KILL"}


async def course(request: Request, view: SessionView) -> Response:
    return json_answer(await read_course(view, await _started_ms(request, view)))


async def _started_ms(request: Request, view: SessionView) -> int:
    """The record knows best; then the first event; the session's name is of an unknown time zone."""
    resolver = resolver_of(request)
    entry = await resolver.entry(selection_of(request))
    record = await resolver.catalogue.start(entry)
    first_ns = view.index.manifest.first_ns
    known = record.started_ms if record else first_ns // 1_000_000 if first_ns else entry.started_ms
    return min(known or view.last_ms, view.last_ms)


async def read_course(view: SessionView, started_ms: int) -> Course:
    step = max(1, -(-(view.last_ms - started_ms + 1) // MOST_MARKS))
    tasks, actors, restarts, jobs = await asyncio.gather(
        view.index.histogram(Query("tasks", filters=_FAILED), "end_time_ms", started_ms, step),
        view.rows("actors", Filter("state", "=", "DEAD"), _BY_RAY, columns=("end_time_ms", "death_cause")),
        view.rows("actor_transitions", Filter("state", "=", "RESTARTING"), columns=("ns",)),
        view.rows("jobs", Filter("status", "=", "FAILED"), _BY_RAY, columns=("end_time",)),
    )
    marks = _Marks(started_ms, step)
    for row in tasks:
        marks.add("tasks", row["last"], row["count"])
    for at_ms in await asyncio.to_thread(_deaths, actors):
        marks.add("actors", at_ms)
    for row in restarts:
        marks.add("actors", row["ns"] // 1_000_000)
    for row in jobs:
        marks.add("jobs", row["end_time"])
    return Course(
        state=view.state,  # type: ignore[arg-type]
        started_ms=started_ms,
        last_ms=view.last_ms,
        gaps=view.index.manifest.counts.gaps,
        failures=marks.in_order(),
    )


class _Marks:
    """At most so many, however much failed: what failed close together is one mark, at the last of it."""

    def __init__(self, started_ms: int, step: int) -> None:
        self._started_ms = started_ms
        self._step = step
        self._marks: dict[int, Mark] = {}

    def add(self, kind: str, at_ms: int | None, count: int = 1) -> None:
        if at_ms is None:
            return
        place = min(max((at_ms - self._started_ms) // self._step, 0), MOST_MARKS - 1)
        mark = self._marks.setdefault(place, Mark(at_ms=at_ms))
        mark.at_ms = max(mark.at_ms, at_ms)
        setattr(mark, kind, getattr(mark, kind) + count)

    def in_order(self) -> list[Mark]:
        return [self._marks[place] for place in sorted(self._marks)]


def _deaths(actors: list[Row]) -> list[int | None]:
    return [actor["end_time_ms"] for actor in actors if has_failed(parsed(actor["death_cause"], {}))]


def has_failed(cause: dict[str, Any]) -> bool:
    """Whether an actor died of something that nobody asked for; of one without a cause nothing is known."""
    died = cause.get("actor_died_error_context")
    if not isinstance(died, dict):
        return bool(cause)
    return died.get("reason") not in _MEANT and "INTENDED_" not in str(died.get("error_message"))


ROUTES: list[BaseRoute] = [get("/api/history/course", course, failed=own_answer_to)]
