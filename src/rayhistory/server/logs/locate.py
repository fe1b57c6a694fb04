"""Find a log file, and a byte range in it, by file name, task, actor, submission or process id.

The result is always a file of a node's listing. No text of a request becomes a path.
"""

import asyncio
import posixpath
import re
from collections.abc import Iterable

import msgspec

from rayhistory.errors import LogNotFound
from rayhistory.index.query.query import Filter, Row
from rayhistory.logs.source import OLD_LOGS_DIR, LogSource, StoredLogFile, find_file
from rayhistory.server.logs.task_log_info import WORKER_OUTPUT, infer_log_info, task_log_info
from rayhistory.server.view import SessionView

OUT, ERR = "out", "err"

_NODE_ID = re.compile(r"[0-9a-f]{56}")
_LOGS_DIR = re.compile(r".*?/session_[^/]+/logs/|.*?/logs/")
_MAX_ROTATIONS = 32
_MAX_TRANSITIONS = 10_000
_COMPARE_BYTES = 64 << 10


class LogQuery(msgspec.Struct, frozen=True):
    """The log that a request asks for.

    A request names the log by actor, task, submission, pid or file name. If it names several, the first of these is
    used.
    """

    node_id: str | None = None
    actor_id: str | None = None
    incarnation: int | None = None
    """The actor's incarnation, counted from 0. None means the latest that wrote output."""
    task_id: str | None = None
    attempt: int | None = None
    """Attempt number of the task; None means the latest attempt."""
    submission_id: str | None = None
    pid: int | None = None
    filename: str | None = None
    suffix: str = OUT


class LogRange(msgspec.Struct, frozen=True):
    node: str
    path: str
    start: int
    end: int
    complete: bool = False
    """True if the range cannot grow, because the task has ended."""


async def find_log(view: SessionView, query: LogQuery) -> LogRange:
    if query.actor_id:
        return await _actor_log(view, query, query.actor_id)
    if query.task_id:
        return await _task_log(view, query, query.task_id)
    if query.submission_id:
        return await _submission_log(view, query, query.submission_id)
    node = await check_node(view, query.node_id or "")
    if query.pid is not None:
        return await _process_log(view, query, node, query.pid)
    return await _file_log(view, node, query.filename or "")


async def check_node(view: SessionView, node_id: str) -> str:
    """Return the id of the node; raise LogNotFound if the session has no such node."""
    node = node_id.lower()
    if _NODE_ID.fullmatch(node) and (
        await view.logs.files(node) or await view.row("nodes", Filter("node_id", "=", node))
    ):
        return node
    if not _NODE_ID.fullmatch(node) and node_id in await view.logs.nodes():
        return node_id
    raise LogNotFound(f"Agent for node id: {node_id} doesn't exist.")


async def node_by_ip(view: SessionView, ip: str) -> str | None:
    """Return the last node with this IP address, or the head node if no node has it.

    The request of a client behind a proxy may have the address of the proxy.
    """
    found = await view.rows("nodes", Filter("node_ip", "=", ip), sort=("-start_time_ms",), limit=1)
    if found:
        return str(found[0]["node_id"])
    return await view.head_node() or next(iter(await view.logs.nodes()), None)


async def _file_log(view: SessionView, node: str, name: str) -> LogRange:
    return _whole_file(node, await find_file(view.logs, node, relative_log_path(name)))


async def _actor_log(view: SessionView, query: LogQuery, actor_id: str) -> LogRange:
    """Return the output of one incarnation of the actor, by default of the latest that wrote any."""
    changes = await view.rows(
        "actor_transitions",
        Filter("actor_id", "in", (actor_id.lower(),)),
        columns=("node_id", "worker_id"),
        sort=("-ns",),
        limit=_MAX_TRANSITIONS,
    )
    changes.reverse()
    if not changes and await view.row("actors", Filter("actor_id", "=", actor_id)) is None:
        raise LogNotFound(f"Actor ID {actor_id} not found.")
    incarnations = list(
        dict.fromkeys((c["node_id"], c["worker_id"]) for c in changes if c["node_id"] and c["worker_id"])
    )
    if not incarnations:
        raise LogNotFound(f"Worker ID for Actor ID {actor_id} not found. Actor is not scheduled yet.")
    number = query.incarnation
    if number is not None and not 0 <= number < len(incarnations):
        raise LogNotFound(f"Actor ID {actor_id} has no incarnation {number}: valid are 0 to {len(incarnations) - 1}.")
    chosen = incarnations[::-1] if number is None else [incarnations[number]]
    for node, worker in chosen:
        for file in _worker_outputs(await view.logs.files(node), query.suffix):
            if _worker_field(file, 1) == worker:
                return _whole_file(node, file)
    raise _not_found(query, chosen[0][0])


async def _process_log(view: SessionView, query: LogQuery, node: str, pid: int) -> LogRange:
    for file in _worker_outputs(await view.logs.files(node), query.suffix):
        if int(_worker_field(file, 3)) == pid:
            return _whole_file(node, file)
    raise _not_found(query, node)


async def _submission_log(view: SessionView, query: LogQuery, submission_id: str) -> LogRange:
    job = await view.row("jobs", Filter("submission_id", "in", (submission_id,)))
    if job is None:
        raise _not_found(query, None)
    nodes = [job["driver_node_id"]] if job["driver_node_id"] else await view.logs.nodes()
    name = f"job-driver-{job['submission_id']}.log"
    for node in nodes:
        for file in await view.logs.files(node):
            if file.path in (name, OLD_LOGS_DIR + name):
                return _whole_file(node, file)
    raise _not_found(query, job["driver_node_id"])


async def _task_log(view: SessionView, query: LogQuery, task_id: str) -> LogRange:
    same_task = Filter("task_id", "in", (task_id.lower(),))
    chosen = () if query.attempt is None else (Filter("attempt_number", "=", query.attempt),)
    attempts = await view.rows("tasks", same_task, *chosen, sort=("-attempt_number",), limit=1)
    if not attempts and not (chosen and await view.row("tasks", same_task)):
        raise LogNotFound(
            f"Could not find log file for task: {task_id} (attempt {query.attempt or 0}) with suffix: {query.suffix}"
        )
    if attempts:
        return await _attempt_log(view, query, attempts[0])
    raise LogNotFound(f"Could not find log file for task attempt:{task_id}({query.attempt})")


async def _attempt_log(view: SessionView, query: LogQuery, task: Row) -> LogRange:
    await infer_log_info(view, [task])
    reported = _task_range(query, task)
    path = relative_log_path(reported.path)
    files = {file.path: file for file in await view.logs.files(reported.node)}
    candidates = [files[name] for name in _candidate_names(path) if name in files]
    if not candidates:
        raise LogNotFound(f"A file is not found at: {path}")
    file = await _file_with_task_output(view.logs, reported, task, candidates)
    end = min(reported.end, file.size) if reported.end >= 0 else file.size
    return LogRange(reported.node, file.path, min(reported.start, end), end, complete=reported.end >= 0)


async def _file_with_task_output(
    logs: LogSource, reported: LogRange, task: Row, candidates: list[StoredLogFile]
) -> StoredLogFile:
    """Return the candidate that contains the task's output. After a rotation, several files may be long enough for it.

    The right file has a marker line with the task's name directly before the output.
    """
    min_size = max(reported.start, reported.end)
    candidates = [file for file in candidates if file.size >= min_size] or candidates[:1]
    if len(candidates) == 1:
        return candidates[0]
    marker = f":task_name:{(task['name'] or '').replace('()', '')}\n".encode()
    begin = max(0, reported.start - len(marker))
    end = min(reported.start + _COMPARE_BYTES, min_size if reported.end >= 0 else min(file.size for file in candidates))
    read = await asyncio.gather(*(logs.read(reported.node, file.path, begin, end) for file in candidates))
    chunks, before = dict(zip(candidates, read, strict=True)), reported.start - begin
    likely = [file for file in candidates if chunks[file][:before] == marker] or candidates
    if len({chunks[file][before:] for file in likely}) == 1:
        return likely[0]
    raise LogNotFound(
        f"The log of task attempt {task['task_id']}({task['attempt_number']}) was rotated, and its output "
        f"may be in any of these files: {', '.join(file.path for file in likely)}"
    )


def _task_range(query: LogQuery, task: Row) -> LogRange:
    """Return the path and range that the task reported. An end of -1 is the end of the file."""
    attempt = f"{task['task_id']}({task['attempt_number']})"
    if task["node_id"] is None:
        raise LogNotFound(f"Could not find log file for task attempt.{attempt} due to missing node info.")
    info = task_log_info(task)
    if info is None and task["actor_id"] is not None:
        raise LogNotFound(
            f"For actor task, please query actor log for actor({task['actor_id']}): e.g. ray logs actor --id "
            f"{task['actor_id']} . Or set RAY_ENABLE_RECORD_ACTOR_TASK_LOGGING=1 in actor's runtime env or when "
            "starting the cluster. Recording actor task's log could be expensive, so Ray turns it off by default."
        )
    if info is None:
        raise LogNotFound(
            f"Could not find log file for task attempt:{attempt}.Worker id = {task['worker_id']}, "
            f"node id = {task['node_id']},log_info = None"
        )
    stream = f"std{query.suffix}"
    if f"{stream}_file" not in info:
        raise LogNotFound(
            f"Missing log filename info in {info} for task {task['task_id']},attempt {task['attempt_number']}"
        )
    return LogRange(
        task["node_id"], info[f"{stream}_file"], info.get(f"{stream}_start", 0), info.get(f"{stream}_end", -1)
    )


def relative_log_path(name: str) -> str:
    """Return a path relative to the logs directory. A path outside of it matches no listed file."""
    if name.startswith("/"):
        match = _LOGS_DIR.match(name)
        name = name[match.end() :] if match else name
    return posixpath.normpath(name)


def _candidate_names(path: str) -> Iterable[str]:
    """Yield the names that a file may have now: rotated, moved to the directory of old logs, or both."""
    stem, extension = posixpath.splitext(path)
    for folder in ("", OLD_LOGS_DIR):
        yield folder + path
        for number in range(1, _MAX_ROTATIONS):
            yield f"{folder}{stem}.{number}{extension}"
            yield f"{folder}{path}.{number}"


def _worker_outputs(files: list[StoredLogFile], suffix: str) -> list[StoredLogFile]:
    """Return the output files of workers. Files in the directory of old logs come last."""
    found = [file for file in files if (match := WORKER_OUTPUT.fullmatch(file.path)) and match[4] == suffix]
    return sorted(found, key=lambda file: (file.path.startswith(OLD_LOGS_DIR), file.path))


def _worker_field(file: StoredLogFile, number: int) -> str:
    match = WORKER_OUTPUT.fullmatch(file.path)
    return match[number] if match else ""


def _whole_file(node: str, file: StoredLogFile) -> LogRange:
    return LogRange(node, file.path, 0, file.size)


def _not_found(query: LogQuery, node: str | None) -> LogNotFound:
    return LogNotFound(
        "Could not find a log file. Please make sure the given option exists in the cluster.\n"
        f"\tnode_id: {node}\n"
        f"\tfilename: {query.filename}\n"
        f"\tactor_id: {query.actor_id}\n"
        f"\ttask_id: {query.task_id}\n"
        f"\tpid: {query.pid}\n"
        f"\tsuffix: {query.suffix}\n"
        f"\tsubmission_id: {query.submission_id}\n"
        f"\tattempt_number: {query.attempt or 0}\n"
    )
