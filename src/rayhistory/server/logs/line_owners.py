"""Find the task attempt and actor that wrote a line, from the ranges of tasks in their workers' output."""

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from rayhistory.index.query.query import Filter, Row
from rayhistory.server.logs.task_log_info import WORKER_OUTPUT, infer_log_info, task_log_columns
from rayhistory.server.view import SessionView

_MAX_TASKS = 20_000
_MAX_ACTORS = 10_000


class LineOwner(msgspec.Struct, frozen=True):
    task_id: str | None = None
    attempt: int | None = None
    actor_id: str | None = None


NOBODY = LineOwner()
LogPosition = tuple[str, str, int]
"""Node, path and offset of a line."""


async def find_owners(view: SessionView, positions: Iterable[LogPosition]) -> dict[LogPosition, LineOwner]:
    """Return the owners of lines in the output of workers. Lines of other files have no owner."""
    by_worker: defaultdict[tuple[str, str], list[tuple[LogPosition, str]]] = defaultdict(list)
    for position in positions:
        if match := WORKER_OUTPUT.fullmatch(position[1]):
            by_worker[position[0], match[1]].append((position, f"std{match[4]}"))
    if not by_worker:
        return {}
    workers = tuple({worker for _, worker in by_worker})
    tasks = await _tasks_of(view, workers)
    actors = await _actors_of(view, workers)
    owners: dict[LogPosition, LineOwner] = {}
    for worker, lines in by_worker.items():
        for position, stream in lines:
            owners[position] = _owner(position, stream, tasks.get(worker, []), actors.get(worker[1]))
    return owners


async def _tasks_of(view: SessionView, workers: tuple[str, ...]) -> dict[tuple[str, str], list[Row]]:
    rows = await view.rows(
        "tasks", Filter("worker_id", "in", workers), columns=(*task_log_columns(), "actor_id"), sort=("running_ns",),
        limit=_MAX_TASKS + 1,
    )  # fmt: skip
    if len(rows) > _MAX_TASKS:
        return {}
    await infer_log_info(view, rows)
    found: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        found[row["node_id"], row["worker_id"]].append(row)
    return found


async def _actors_of(view: SessionView, workers: tuple[str, ...]) -> dict[str, str]:
    rows = await view.rows(
        "actor_transitions", Filter("worker_id", "in", workers), columns=("worker_id", "actor_id"), limit=_MAX_ACTORS
    )
    return {row["worker_id"]: row["actor_id"] for row in rows}


def _owner(position: LogPosition, stream: str, tasks: list[Row], actor: str | None) -> LineOwner:
    _, path, offset = position
    for row in reversed(tasks):
        start, end, file = row[f"{stream}_start"], row[f"{stream}_end"], row[f"{stream}_file"]
        is_its_file = file is None or str(file).rpartition("/")[2] == path.rpartition("/")[2]
        if start is not None and is_its_file and start <= offset and (end is None or offset < end):
            return LineOwner(row["task_id"], row["attempt_number"], row["actor_id"])
    return LineOwner(actor_id=actor)
