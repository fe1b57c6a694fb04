"""The files, and ranges of files, that belong to a job, a task or an actor."""

import re

from rayhistory.errors import LogNotFound
from rayhistory.index.query.query import Filter, Row
from rayhistory.logs.written_range import range_written_between
from rayhistory.search.scanner import Scope
from rayhistory.search.search_query import SearchQuery
from rayhistory.server.logs.locate import ERR, OUT, LogQuery, find_log
from rayhistory.server.logs.task_log_info import WORKER_OUTPUT
from rayhistory.server.view import SessionView

_MAX_ATTEMPTS = 1000
_MAX_WORKERS = 10_000
_CORE_WORKER = re.compile(r"(?:.*/)?python-core-worker-([0-9a-f]+)_\d+\.log")
_CORE_DRIVER = re.compile(r"(?:.*/)?python-core-driver-([0-9a-f]{8})[0-9a-f]*_\d+\.log")
_TASK_COLUMNS = ("attempt_number", "actor_id", "node_id", "worker_id", "start_time_ms", "end_time_ms")
_WHOLE_FILE: tuple[tuple[int, int], ...] = ()

_Files = dict[tuple[str, str], tuple[tuple[int, int], ...]]


async def find_scope(view: SessionView, query: SearchQuery) -> Scope | None:
    """Return the files and ranges of a search that is limited to a job, task or actor; None without such a limit."""
    scopes: list[_Files] = []
    if query.job:
        scopes.append(await _job_files(view, query.job))
    if query.actor:
        scopes.append(await _actor_files(view, query.actor))
    if query.task:
        scopes.append(await _task_ranges(view, query.task))
    if not scopes:
        return None
    narrowest = scopes.pop()
    return {place: ranges for place, ranges in narrowest.items() if all(place in scope for scope in scopes)}


async def _task_ranges(view: SessionView, task_id: str) -> _Files:
    attempts = await view.rows(
        "tasks", Filter("task_id", "in", (task_id.lower(),)), columns=_TASK_COLUMNS, limit=_MAX_ATTEMPTS
    )
    found: _Files = {}
    for row in attempts:
        own = await _own_ranges(view, task_id, row["attempt_number"])
        for place, ranges in (own or await _actor_ranges(view, row)).items():
            found[place] = _merged([*found.get(place, ()), *ranges])
    return found


async def _own_ranges(view: SessionView, task_id: str, attempt: int) -> _Files:
    """Return the output of one attempt, if its location is known."""
    found: _Files = {}
    for suffix in (OUT, ERR):
        try:
            place = await find_log(view, LogQuery(task_id=task_id, attempt=attempt, suffix=suffix))
        except LogNotFound:
            continue
        if place.start < place.end:
            found[place.node, place.path] = ((place.start, place.end),)
    return found


async def _actor_ranges(view: SessionView, task: Row) -> _Files:
    """Return the lines that the actor's worker wrote during the task, because Ray records no ranges for actor tasks."""
    node, worker, start = task["node_id"], task["worker_id"], task["start_time_ms"]
    if not (task["actor_id"] and node and worker and start):
        return {}
    found: _Files = {}
    for path, history in (await view.logs.histories(node)).items():
        output = WORKER_OUTPUT.fullmatch(path)
        written = range_written_between(history.points, start, task["end_time_ms"])
        if output and output[1] == worker and written[0] < written[1]:
            found[node, path] = (written,)
    return found


def _merged(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Join overlapping ranges, so that no line is found twice."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return tuple(joined)


async def _actor_files(view: SessionView, actor_id: str) -> _Files:
    changes = await view.rows(
        "actor_transitions", Filter("actor_id", "in", (actor_id.lower(),)), columns=("worker_id",), limit=_MAX_WORKERS
    )
    workers = {change["worker_id"] for change in changes if change["worker_id"]}
    return await _files(view, workers=workers)


async def _job_files(view: SessionView, job: str) -> _Files:
    """Return the output of a job's workers and drivers. A job is named by its id or its submission id."""
    rows = [
        *await view.rows("jobs", Filter("job_id", "in", (job,)), limit=_MAX_ATTEMPTS),
        *await view.rows("jobs", Filter("submission_id", "in", (job,)), limit=_MAX_ATTEMPTS),
    ]
    jobs = {row["job_id"] for row in rows if row["job_id"]} | {job}
    drivers = {f"job-driver-{row['submission_id']}.log" for row in rows if row["submission_id"]}
    return await _files(view, jobs=jobs, names=drivers | {f"job-driver-{job}.log"})


async def _files(
    view: SessionView,
    *,
    workers: set[str] | frozenset[str] = frozenset(),
    jobs: set[str] | frozenset[str] = frozenset(),
    names: set[str] | frozenset[str] = frozenset(),
) -> _Files:
    found: _Files = {}
    for node in await view.logs.nodes():
        for file in await view.logs.files(node):
            output, core = WORKER_OUTPUT.fullmatch(file.path), _CORE_WORKER.fullmatch(file.path)
            driver = _CORE_DRIVER.fullmatch(file.path)
            if (
                (output and (output[1] in workers or output[2] in jobs))
                or (core and core[1] in workers)
                or (driver and driver[1] in jobs)
                or file.path.rpartition("/")[2] in names
            ):
                found[node, file.path] = _WHOLE_FILE
    return found
