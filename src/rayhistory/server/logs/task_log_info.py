"""The location of a task's output in its worker's log files: as Ray exported it, or inferred.

Ray before 2.54 exports nothing about it. Ray 2.54 to 2.57 exports only the end of the output if a task is shorter than
a second. The rest is inferred: file names contain the ids of worker and job, and the worker writes a marker line before
each task. Tables have only exported values. Ray's API also serves inferred values, and our API tells which these are.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterable

from rayhistory.errors import LogNotFound
from rayhistory.index.query.query import Filter, Row
from rayhistory.logs.source import LogSource, StoredLogFile
from rayhistory.logs.worker_markers import MAX_MARKER_BYTES, Marker, TaskOutput, find_markers, infer_ranges
from rayhistory.packs.pack_format import PackDamaged
from rayhistory.ray_env import known_version
from rayhistory.server.untrusted_json import dicts_in, nested_dict
from rayhistory.server.view import SessionView

LOG_FIELDS = ("stdout_file", "stderr_file", "stdout_start", "stdout_end", "stderr_start", "stderr_end")
WORKER_OUTPUT = re.compile(r"(?:.*/)?worker-([0-9a-f]+)-([0-9a-f]+)-(\d+)\.(out|err)")
MAX_SCAN_BYTES = 64 << 20
"""Maximum number of log bytes that are read for one response. In a long list of tasks, some ranges are not inferred."""

_WHOLE_SINCE = (2, 58)
_MAX_TASKS = 20_000
"""If the workers of the listed tasks ran more tasks than this, no range is inferred for this response."""
_CHUNK_BYTES = 1 << 20
_NODES_URI = "/nodes?view=summary"
_COLUMNS = (
    "task_id", "attempt_number", "name", "type", "state", "error_type", "node_id", "worker_id", "running_ns",
    "finished_ns", "failed_ns", "closed_ns", *LOG_FIELDS,
)  # fmt: skip
_LOST_WORKER = {"WORKER_DIED", "NODE_DIED", "OUT_OF_MEMORY", "ACTOR_DIED"}
"""Errors of tasks that ended with their worker, so that no end of their output was recorded."""

TaskKey = tuple[str, int]
Worker = tuple[str, str]


def task_log_columns() -> tuple[str, ...]:
    """Return the columns of tasks that `infer_log_info` needs."""
    return _COLUMNS


def task_log_info(row: Row) -> Row | None:
    """Return the location of a task's output, without unknown fields; None if no file is known."""
    if row["stdout_file"] is None and row["stderr_file"] is None:
        return None
    return {name: row[name] for name in LOG_FIELDS if row[name] is not None}


async def infer_log_info(view: SessionView, rows: Iterable[Row]) -> dict[TaskKey, list[str]]:
    """Set the log fields that Ray did not export and that can be inferred. Return their names per task attempt."""
    version = known_version(view.index.manifest.ray_version)
    if version is not None and version >= _WHOLE_SINCE:
        return {}
    wanted = {_key(row): row for row in rows if _is_incomplete(row)}
    files = await _files_to_scan(view.logs, sorted({(row["node_id"], row["worker_id"]) for row in wanted.values()}))
    if not files:
        return {}
    tasks = await view.rows(
        "tasks",
        Filter("worker_id", "in", tuple({worker for _, worker in files})),
        Filter("running_ns", "!=", None),
        columns=_COLUMNS,
        limit=_MAX_TASKS + 1,
    )
    if len(tasks) > _MAX_TASKS:
        return {}
    by_worker: defaultdict[Worker, list[Row]] = defaultdict(list)
    for task in sorted(tasks, key=lambda task: (task["running_ns"], *_key(task))):  # faster than in a query
        by_worker[task["node_id"], task["worker_id"]].append(task)
    return await _infer(view, wanted, by_worker, files)


def _key(row: Row) -> TaskKey:
    return row["task_id"], row["attempt_number"]


def _is_incomplete(row: Row) -> bool:
    """Return True if the task ran and the start or end of its output is unknown."""
    if row["running_ns"] is None or not row["node_id"] or not row["worker_id"]:
        return False
    if row["type"] != "NORMAL_TASK" and row["stdout_end"] is None:
        return False  # Ray does not record the output of an actor's tasks, unless configured to
    known = [row[name] is not None for name in LOG_FIELDS]
    return not all(known) and (not all(known[:2]) or row["stdout_start"] is None or _has_ended(row))


def _has_ended(row: Row) -> bool:
    return row["finished_ns"] is not None or row["failed_ns"] is not None


async def _files_to_scan(logs: LogSource, workers: list[Worker]) -> dict[Worker, dict[str, StoredLogFile]]:
    """Return the output files of each worker by suffix. A file that would exceed MAX_SCAN_BYTES is left out."""
    files = {node: await _worker_files(logs, node) for node in sorted({node for node, _ in workers})}
    found: defaultdict[Worker, dict[str, StoredLogFile]] = defaultdict(dict)
    budget = MAX_SCAN_BYTES
    for node, worker in workers:
        for suffix, file in files[node].get(worker, {}).items():
            if file.size <= budget:
                budget -= file.size
                found[node, worker][suffix] = file
    return dict(found)


async def _infer(
    view: SessionView,
    wanted: dict[TaskKey, Row],
    tasks: dict[Worker, list[Row]],
    files: dict[Worker, dict[str, StoredLogFile]],
) -> dict[TaskKey, list[str]]:
    inferred: defaultdict[TaskKey, list[str]] = defaultdict(list)
    directory = await _logs_directory(view)
    for worker, of_worker in tasks.items():
        for suffix, file in files.get(worker, {}).items():
            try:
                markers = await _read_markers(view.logs, worker[0], file)
            except (LogNotFound, PackDamaged):
                continue  # a list of tasks does not fail because of a log
            outputs = [_output(task, f"std{suffix}") for task in of_worker]
            for task, found in zip(of_worker, infer_ranges(outputs, markers, file.size), strict=True):
                row = wanted.get(_key(task))
                if row is None or found is None:
                    continue
                values = (f"{directory}/{file.path.rpartition('/')[2]}", *found)
                for name, value in zip(
                    (f"std{suffix}_{field}" for field in ("file", "start", "end")), values, strict=True
                ):
                    if row[name] is None and value is not None:
                        row[name] = value
                        inferred[_key(task)].append(name)
    return dict(inferred)


def _output(task: Row, stream: str) -> TaskOutput:
    return TaskOutput(
        marker_name=TaskOutput.marker(task["name"] or "") if task["type"] == "NORMAL_TASK" else None,
        start=task[f"{stream}_start"],
        end=task[f"{stream}_end"],
        has_ended=_has_ended(task),
        ended_by_worker=task["closed_ns"] is None and task["error_type"] not in _LOST_WORKER,
    )


async def _worker_files(logs: LogSource, node: str) -> dict[str, dict[str, StoredLogFile]]:
    """Return the output files of a node's workers, by worker and suffix."""
    found: defaultdict[str, dict[str, StoredLogFile]] = defaultdict(dict)
    for file in await logs.files(node):
        if match := WORKER_OUTPUT.fullmatch(file.path):
            found[match[1]][match[4]] = file
    return found


async def _read_markers(logs: LogSource, node: str, file: StoredLogFile) -> list[Marker]:
    """Return all marker lines of a file. It is read in chunks that overlap."""
    markers: dict[int, Marker] = {}
    for start in range(0, file.size, _CHUNK_BYTES):
        begin = max(0, start - MAX_MARKER_BYTES)
        chunk = await logs.read(node, file.path, begin, min(start + _CHUNK_BYTES, file.size))
        for marker in await asyncio.to_thread(find_markers, chunk, begin):
            markers.setdefault(marker.begin, marker)
    return [marker for _, marker in sorted(markers.items())]


async def _logs_directory(view: SessionView) -> str:
    """Return Ray's logs directory on the nodes: from a path that Ray reported, else Ray's default."""
    reported = await view.rows("tasks", Filter("stdout_file", "prefix", "/"), columns=("stdout_file",), limit=1)
    if reported:
        return str(reported[0]["stdout_file"]).rpartition("/")[0]
    nodes = nested_dict(await view.dashboard_response(_NODES_URI), "data").get("summary")
    for node in dicts_in(nodes):
        temp_dir, found, _ = str(nested_dict(node, "raylet").get("rayletSocketName")).partition(f"/{view.ref.session}/")
        if found:
            return f"{temp_dir}{found}logs"
    return f"/tmp/ray/{view.ref.session}/logs"  # noqa: S108
