"""Figures of a session for comparison with other runs: functions, and resources that tasks and actors held."""

import msgspec

from rayhistory.index.query.database import execute
from rayhistory.index.query.open_index import OpenIndex
from rayhistory.index.query.query import Row

MAX_FUNCTION_ROWS = 200
_MAX_REQUESTS = 1_000
_LISTED = "type <> 'DRIVER_TASK' AND NOT starts_with(func_or_class_name, 'JobSupervisor')"
_MAX_SPAN_MS = 10 * 366 * 86_400_000
"""Maximum length of a span: ten years. Times come from clusters and may be wrong."""


class FunctionFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the attempts of one function, in one job or (if `job_id` is None) in all jobs."""

    name: str
    job_id: str | None = None
    count: int = 0
    failed: int = 0
    """Number of failed attempts, without those that were still running when the session ended."""
    p50_ms: float | None = None
    p95_ms: float | None = None
    max_ms: int | None = None
    """Highest run time of a finished attempt; like the percentiles, None if none has finished."""
    waiting_ms: int = 0
    """Time from creation to start, summed over all attempts."""
    running_ms: int = 0
    """Time from start to end, summed over all attempts."""


class HeldResources(msgspec.Struct, frozen=True):
    """A resource request, and the total time for which tasks or actors of a job held it."""

    required_resources: str
    held_ms: int
    job_id: str = ""


class RunFigures(msgspec.Struct, frozen=True):
    functions: list[FunctionFigures]
    held: list[HeldResources]


def _span(start: str, end: str) -> str:
    return f"least(greatest({end} - {start}, 0), {_MAX_SPAN_MS})"


_RUN = _span("running_ns // 1000000", "coalesce(finished_ns, failed_ns, closed_ns) // 1000000")
_WAIT = _span("pending_args_avail_ns // 1000000", "running_ns // 1000000")
_FUNCTIONS = f"""
WITH attempts AS (
  SELECT coalesce(job_id, '') AS job, coalesce(func_or_class_name, '') AS name, {_RUN} AS run, {_WAIT} AS wait,
    state = 'FAILED' AND NOT closed_by_history AS failed,
    finished_ns IS NOT NULL AND finished_ns >= running_ns AS finished
  FROM {{tasks}} WHERE {_LISTED}
)
SELECT name, if(grouping(job) = 1, NULL, job) AS job_id, count(*) AS count,
  count(*) FILTER (WHERE failed) AS failed,
  median(run) FILTER (WHERE finished)::DOUBLE AS p50_ms,
  quantile_cont(run, 0.95) FILTER (WHERE finished)::DOUBLE AS p95_ms,
  max(run) FILTER (WHERE finished)::BIGINT AS max_ms,
  coalesce(sum(wait), 0)::BIGINT AS waiting_ms, coalesce(sum(run), 0)::BIGINT AS running_ms
FROM attempts GROUP BY GROUPING SETS ((name), (name, job))
ORDER BY grouping(job) DESC, running_ms DESC, name, job_id LIMIT {MAX_FUNCTION_ROWS}
"""
# A task of an actor runs within the resources of its actor.
_HELD_BY_TASKS = f"""
SELECT required_resources, coalesce(sum({_RUN}), 0)::BIGINT AS held_ms, coalesce(job_id, '') AS job_id FROM {{tasks}}
WHERE type = 'NORMAL_TASK' AND required_resources IS NOT NULL AND {_LISTED}
GROUP BY required_resources, job_id ORDER BY held_ms DESC LIMIT {_MAX_REQUESTS}
"""
_HELD_BY_ACTORS = f"""
SELECT required_resources, coalesce(sum({_span("start_time_ms", "coalesce(end_time_ms, ?)")}), 0)::BIGINT AS held_ms,
  coalesce(job_id, '') AS job_id
FROM {{actors}} WHERE required_resources IS NOT NULL AND start_time_ms IS NOT NULL
GROUP BY required_resources, job_id ORDER BY held_ms DESC LIMIT {_MAX_REQUESTS}
"""


async def read_run_figures(index: OpenIndex, last_ms: int | None) -> RunFigures:
    """Return the figures of a session for comparison with other runs.

    Actors that are still alive hold their resources until `last_ms`, the time of the last data.
    """

    def work(tasks: str, actors: str) -> RunFigures:
        held: list[Row] = execute(_HELD_BY_TASKS.format(tasks=tasks), [])
        held += execute(_HELD_BY_ACTORS.format(actors=actors), [last_ms])
        return RunFigures(
            [FunctionFigures(**row) for row in execute(_FUNCTIONS.format(tasks=tasks), [])],
            [HeldResources(**row) for row in held],
        )

    return await index.read(("tasks", "actors"), work)
