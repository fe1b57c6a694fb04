"""Estimate the critical path: the chain of tasks that determined how long a job took.

Ray does not export which task uses another one's result. So the estimate uses only times: a task follows the task that
ended last before it could start. Only the longest tasks are considered.
"""

from bisect import bisect_right
from itertools import groupby

from rayhistory.diagnosis.findings import CriticalPath, PathStep
from rayhistory.diagnosis.rules.slowness.costs import cluster_cpus
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.index.query.long_tasks import LongTask

_MAX_TASKS = 200
_MAX_STEPS = 20
_WAITED_MS = 50
"""Waits of a task that are not longer than this are ignored: they are the usual scheduling delay."""
_TOLERANCE_MS = 20


def estimate_critical_path(facts: SessionFacts) -> CriticalPath | None:
    """Return the path of the job whose long tasks took most time; None if the path has fewer than two tasks."""
    tasks = _leaves(_of_longest_job(facts.long_tasks))
    path = _path(tasks)
    if len(path) < 2:
        return None
    run_ms = sum(task.end_ms - task.start_ms for task in path)
    cpus = cluster_cpus(facts)
    return CriticalPath(
        job_id=path[0].job_id,
        span_ms=path[-1].end_ms - min(task.created_ms for task in tasks),
        run_ms=run_ms,
        tasks=len(path),
        ideal_ms=int(facts.times.running_ms / cpus) if cpus else None,
        steps=_steps(path)[-_MAX_STEPS:],
    )


def _of_longest_job(tasks: list[LongTask]) -> list[LongTask]:
    totals: dict[str, int] = {}
    for task in tasks:
        totals[task.job_id] = totals.get(task.job_id, 0) + task.end_ms - task.start_ms
    longest = max(totals, key=lambda job: totals[job], default="")
    return [task for task in tasks if task.job_id == longest]


def _leaves(tasks: list[LongTask]) -> list[LongTask]:
    """Return the tasks that called no other long task. The others mostly waited for the tasks that they had called."""
    parents = {task.parent_task_id for task in tasks}
    return sorted((task for task in tasks if task.task_id not in parents), key=lambda task: (task.end_ms, task.task_id))


def _path(tasks: list[LongTask]) -> list[LongTask]:
    """Follow the path backwards from the task that ended last."""
    if not tasks:
        return []
    ends = [task.end_ms for task in tasks]
    path, position = [tasks[-1]], len(tasks) - 1
    while len(path) < _MAX_TASKS:
        found = _before(path[-1], tasks[:position], ends[:position])
        if found is None:
            break
        position = found
        path.append(tasks[position])
    return path[::-1]


def _before(task: LongTask, tasks: list[LongTask], ends: list[int]) -> int | None:
    """Return the position of the task that `task` probably waited for; None if there is none."""
    by_node = task.start_ms - task.ready_ms > _WAITED_MS
    until = (
        task.start_ms if by_node else task.ready_ms if task.ready_ms - task.created_ms > _WAITED_MS else task.created_ms
    )
    last = bisect_right(ends, until + _TOLERANCE_MS) - 1
    if not by_node:
        return last if last >= 0 else None
    same = (number for number in range(last, -1, -1) if tasks[number].node_id == task.node_id)
    return next(same, None)


def _steps(path: list[LongTask]) -> list[PathStep]:
    """Combine adjacent tasks of the same function."""
    steps = []
    for function, group in groupby(path, key=lambda task: task.function):
        tasks = list(group)
        longest = max(tasks, key=lambda task: task.end_ms - task.start_ms)
        steps.append(PathStep(
            function=function, tasks=len(tasks), run_ms=sum(task.end_ms - task.start_ms for task in tasks),
            first_ms=tasks[0].start_ms, last_ms=tasks[-1].end_ms, task_id=longest.task_id,
        ))  # fmt: skip
    return steps
