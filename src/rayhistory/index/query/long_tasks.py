"""The longest tasks of a session with the times of their states, from which a critical path is estimated."""

import msgspec

from rayhistory.index.query.database import execute
from rayhistory.index.query.open_index import OpenIndex

MAX_LONG_TASKS = 2_000


class LongTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that ran, with times in ms."""

    task_id: str
    job_id: str = ""
    function: str = ""
    parent_task_id: str | None = None
    node_id: str | None = None
    created_ms: int
    ready_ms: int
    """Time when the task's arguments were available."""
    start_ms: int
    end_ms: int


_LONGEST = f"""
SELECT task_id, coalesce(job_id, '') AS job_id, coalesce(func_or_class_name, '') AS function, parent_task_id, node_id,
  coalesce(pending_args_avail_ns, running_ns) // 1000000 AS created_ms,
  coalesce(pending_node_assignment_ns, running_ns) // 1000000 AS ready_ms, running_ns // 1000000 AS start_ms,
  coalesce(finished_ns, failed_ns) // 1000000 AS end_ms
FROM {{tasks}}
WHERE type <> 'DRIVER_TASK' AND NOT starts_with(func_or_class_name, 'JobSupervisor') AND running_ns IS NOT NULL
  AND coalesce(finished_ns, failed_ns) >= running_ns
ORDER BY coalesce(finished_ns, failed_ns) - running_ns DESC, task_id LIMIT {MAX_LONG_TASKS}
"""


async def read_long_tasks(index: OpenIndex) -> list[LongTask]:
    """Return the longest tasks, the longest first."""

    def work(tasks: str) -> list[LongTask]:
        return [LongTask(**row) for row in execute(_LONGEST.format(tasks=tasks), [])]

    return await index.read(("tasks",), work)
