"""Times of tasks, aggregated in the database: how long they waited and ran, by function and by node."""

import msgspec

from rayhistory.index.query.database import execute
from rayhistory.index.query.open_index import OpenIndex

MAX_FUNCTIONS = 200
MAX_NODE_ROWS = 2_000
MAX_OPEN_TASKS = 50


class FunctionTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Run times of the finished attempts of one function, in ms."""

    job_id: str = ""
    function: str = ""
    type: str = "NORMAL_TASK"
    count: int = 0
    total_ms: int = 0
    median_ms: float = 0.0
    mean_ms: float = 0.0
    deviation_ms: float = 0.0
    max_ms: int = 0
    p95_ms: float = 0.0
    waiting_ms: int = 0
    """Time from creation to start, summed over all attempts."""
    first_ms: int = 0
    last_ms: int = 0
    slowest_task_id: str = ""
    slowest_node_id: str | None = None
    from_driver: bool = True
    """True if a driver called all of these tasks."""


class NodeTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Run times of one function on one node."""

    job_id: str = ""
    function: str = ""
    node_id: str = ""
    count: int = 0
    median_ms: float = 0.0
    total_ms: int = 0


class OpenTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that was running when its job or its session ended."""

    job_id: str = ""
    function: str = ""
    task_id: str = ""
    start_ms: int = 0
    end_ms: int | None = None
    node_id: str | None = None
    worker_id: str | None = None


class TimeTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Time of all tasks together, in ms, by state."""

    tasks: int = 0
    waiting_args_ms: int = 0
    waiting_node_ms: int = 0
    fetching_args_ms: int = 0
    starting_ms: int = 0
    waiting_actor_ms: int = 0
    """Time that calls waited at their actor, because it was busy with other calls."""
    running_ms: int = 0
    failed_ms: int = 0
    """Run time of attempts that failed and were retried."""


_LISTED = "type <> 'DRIVER_TASK' AND NOT starts_with(func_or_class_name, 'JobSupervisor')"
_RUN = "(coalesce(finished_ns, failed_ns) - running_ns) // 1000000"
_WAIT = "(running_ns - pending_args_avail_ns) // 1000000"
_DRIVER_PREFIX = "f" * 40

_FUNCTIONS = f"""
SELECT coalesce(job_id, '') AS job_id, coalesce(func_or_class_name, '') AS function, type, count(*) AS count,
  sum(run)::BIGINT AS total_ms, median(run)::DOUBLE AS median_ms, avg(run)::DOUBLE AS mean_ms,
  coalesce(stddev_samp(run), 0)::DOUBLE AS deviation_ms, max(run)::BIGINT AS max_ms,
  quantile_cont(run, 0.95)::DOUBLE AS p95_ms, coalesce(sum(greatest(wait, 0)), 0)::BIGINT AS waiting_ms,
  min(started) AS first_ms, max(started + run) AS last_ms, arg_max(task_id, run) AS slowest_task_id,
  arg_max(node_id, run) AS slowest_node_id,
  bool_and(starts_with(coalesce(parent_task_id, ''), '{_DRIVER_PREFIX}')) AS from_driver
FROM (SELECT *, {_RUN} AS run, {_WAIT} AS wait, running_ns // 1000000 AS started FROM {{tasks}}
  WHERE {_LISTED} AND finished_ns IS NOT NULL AND running_ns IS NOT NULL)
WHERE run >= 0 GROUP BY ALL ORDER BY total_ms DESC LIMIT {MAX_FUNCTIONS}
"""
_NODES = f"""
SELECT coalesce(job_id, '') AS job_id, coalesce(func_or_class_name, '') AS function, node_id, count(*) AS count,
  median(run)::DOUBLE AS median_ms, sum(run)::BIGINT AS total_ms
FROM (SELECT *, {_RUN} AS run FROM {{tasks}}
  WHERE {_LISTED} AND finished_ns IS NOT NULL AND running_ns IS NOT NULL AND node_id IS NOT NULL)
WHERE run >= 0 GROUP BY ALL HAVING count(*) >= 5 ORDER BY total_ms DESC LIMIT {MAX_NODE_ROWS}
"""
_OPEN = f"""
SELECT coalesce(job_id, '') AS job_id, coalesce(func_or_class_name, '') AS function, task_id,
  start_time_ms AS start_ms, end_time_ms AS end_ms, node_id, worker_id
FROM {{tasks}} WHERE {_LISTED} AND running_ns IS NOT NULL AND finished_ns IS NULL AND failed_ns IS NULL
ORDER BY start_ms LIMIT {MAX_OPEN_TASKS}
"""


def _share(start: str, end: str, condition: str = "true") -> str:
    return f"coalesce(sum(greatest({end} - {start}, 0)) FILTER (WHERE {condition}), 0)::HUGEINT // 1000000"


_END = "coalesce(finished_ns, failed_ns, closed_ns)"
_STARTED = f"coalesce(running_ns, {_END})"
_SUBMITTED = f"coalesce(submitted_to_worker_ns, {_STARTED})"
_PLACED = f"coalesce(pending_args_fetch_ns, {_SUBMITTED})"
_READY = f"coalesce(pending_node_assignment_ns, {_PLACED})"
"""Times at which a task left a state: for the next one that it reached, or at its end."""
_TIMES = f"""
SELECT count(*) AS tasks,
  {_share("pending_args_avail_ns", _READY)}::BIGINT AS waiting_args_ms,
  {_share("pending_node_assignment_ns", _PLACED)}::BIGINT AS waiting_node_ms,
  {_share("pending_args_fetch_ns", _SUBMITTED)}::BIGINT AS fetching_args_ms,
  {_share("submitted_to_worker_ns", _STARTED, "type <> 'ACTOR_TASK'")}::BIGINT AS starting_ms,
  {_share("submitted_to_worker_ns", _STARTED, "type = 'ACTOR_TASK'")}::BIGINT AS waiting_actor_ms,
  {_share("running_ns", _END)}::BIGINT AS running_ms,
  (coalesce(sum(greatest(coalesce(failed_ns, closed_ns) - running_ns, 0)) FILTER (WHERE retried), 0)::HUGEINT
    // 1000000)::BIGINT AS failed_ms
FROM (SELECT t.*, coalesce(r.last > t.attempt_number, false) AS retried FROM {{tasks}} t LEFT JOIN
  (SELECT task_id, max(attempt_number) AS last FROM {{list}} WHERE attempt_number > 0 GROUP BY task_id) r
  USING (task_id)
  WHERE {_LISTED})
"""


class TaskTimes(msgspec.Struct, frozen=True):
    functions: list[FunctionTimes]
    by_node: list[NodeTimes]
    open_tasks: list[OpenTask]
    session: TimeTotals


async def read_task_times(index: OpenIndex) -> TaskTimes:
    """Return the times of a session's tasks."""

    def work(tasks: str, task_list: str) -> TaskTimes:
        return TaskTimes(
            [FunctionTimes(**row) for row in execute(_FUNCTIONS.format(tasks=tasks), [])],
            [NodeTimes(**row) for row in execute(_NODES.format(tasks=tasks), [])],
            [OpenTask(**row) for row in execute(_OPEN.format(tasks=tasks), [])],
            TimeTotals(**execute(_TIMES.format(tasks=tasks, list=task_list), [])[0]),
        )

    return await index.read(("tasks", "task_list"), work)
