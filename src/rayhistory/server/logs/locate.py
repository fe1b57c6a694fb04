"""Which file, and which bytes of it, a question about logs means: by name, task, actor, submitted job or process.

Every answer is a file of a node's listing, so that nothing a caller writes becomes a path.
"""

import asyncio
import posixpath
import re
from collections.abc import Iterable

import msgspec

from rayhistory.errors import LogNotFound
from rayhistory.index.query import Filter, Row
from rayhistory.server.logfiles import MOVED, LogFile, Logs, find_file
from rayhistory.server.state_rows import task_log_info
from rayhistory.server.view import SessionView

OUT, ERR = "out", "err"

_NODE = re.compile(r"[0-9a-f]{56}")
_LOGS_DIR = re.compile(r".*?/session_[^/]+/logs/|.*?/logs/")
_WORKER = re.compile(r"(?:.*/)?worker-([0-9a-f]+)-([0-9a-f]+)-(\d+)\.(out|err)")
_MOST_ROTATIONS = 32
_ENOUGH_TO_COMPARE = 64 << 10


class Wanted(msgspec.Struct, frozen=True):
    """What was asked for; the first of actor, task, submission, pid and file name that is given counts."""

    node_id: str | None = None
    actor_id: str | None = None
    incarnation: int | None = None
    """Of the actor, from 0 on; None means the latest that left output."""
    task_id: str | None = None
    attempt: int | None = None
    """None means the latest."""
    submission_id: str | None = None
    pid: int | None = None
    filename: str | None = None
    suffix: str = OUT


class Found(msgspec.Struct, frozen=True):
    node: str
    path: str
    start: int
    end: int
    complete: bool = False
    """What is appended after the end is not part of it: it is the output of a task that has ended."""


async def find_log(view: SessionView, wanted: Wanted) -> Found:
    if wanted.actor_id:
        return await _of_actor(view, wanted, wanted.actor_id)
    if wanted.task_id:
        return await _of_task(view, wanted, wanted.task_id)
    if wanted.submission_id:
        return await _of_submission(view, wanted, wanted.submission_id)
    node = await known_node(view, wanted.node_id or "")
    if wanted.pid is not None:
        return await _of_process(view, wanted, node, wanted.pid)
    return await _of_name(view, node, wanted.filename or "")


async def known_node(view: SessionView, node_id: str) -> str:
    """The node, if there is one: a name that is no node's never gets as far as the store."""
    node = node_id.lower()
    if _NODE.fullmatch(node) and (await view.logs.files(node) or await view.row("nodes", Filter("node_id", "=", node))):
        return node
    if not _NODE.fullmatch(node) and node_id in await view.logs.nodes():
        return node_id
    raise LogNotFound(f"Agent for node id: {node_id} doesn't exist.")


async def node_of_ip(view: SessionView, ip: str) -> str | None:
    """The last node that had this address; the head node for one that nobody had, as a proxy sends its own."""
    found = await view.rows("nodes", Filter("node_ip", "=", ip), sort=("-start_time_ms",), limit=1)
    if found:
        return str(found[0]["node_id"])
    return await view.head_node() or next(iter(await view.logs.nodes()), None)


async def _of_name(view: SessionView, node: str, name: str) -> Found:
    return _whole(node, await find_file(view.logs, node, below_logs(name)))


async def _of_actor(view: SessionView, wanted: Wanted, actor_id: str) -> Found:
    """The output of one life of the actor, which may be the latest that left any."""
    changes = await view.rows("actor_transitions", Filter("actor_id", "in", (actor_id.lower(),)), sort=("ns",))
    if not changes and await view.row("actors", Filter("actor_id", "=", actor_id)) is None:
        raise LogNotFound(f"Actor ID {actor_id} not found.")
    lives = list(dict.fromkeys((c["node_id"], c["worker_id"]) for c in changes if c["node_id"] and c["worker_id"]))
    if not lives:
        raise LogNotFound(f"Worker ID for Actor ID {actor_id} not found. Actor is not scheduled yet.")
    number = wanted.incarnation
    if number is not None and not 0 <= number < len(lives):
        raise LogNotFound(f"Actor ID {actor_id} has no incarnation {number}: there are 0 to {len(lives) - 1}.")
    chosen = lives[::-1] if number is None else [lives[number]]
    for node, worker in chosen:
        for file in _outputs(await view.logs.files(node), wanted.suffix):
            if _part(file, 1) == worker:
                return _whole(node, file)
    raise _not_found(wanted, chosen[0][0])


async def _of_process(view: SessionView, wanted: Wanted, node: str, pid: int) -> Found:
    for file in _outputs(await view.logs.files(node), wanted.suffix):
        if int(_part(file, 3)) == pid:
            return _whole(node, file)
    raise _not_found(wanted, node)


async def _of_submission(view: SessionView, wanted: Wanted, submission_id: str) -> Found:
    job = await view.row("jobs", Filter("submission_id", "in", (submission_id,)))
    if job is None:
        raise _not_found(wanted, None)
    nodes = [job["driver_node_id"]] if job["driver_node_id"] else await view.logs.nodes()
    name = f"job-driver-{job['submission_id']}.log"
    for node in nodes:
        for file in await view.logs.files(node):
            if file.path in (name, MOVED + name):
                return _whole(node, file)
    raise _not_found(wanted, job["driver_node_id"])


async def _of_task(view: SessionView, wanted: Wanted, task_id: str) -> Found:
    attempts = await view.rows("tasks", Filter("task_id", "in", (task_id.lower(),)), sort=("-attempt_number",))
    if not attempts:
        raise LogNotFound(
            f"Could not find log file for task: {task_id} (attempt {wanted.attempt or 0}) with suffix: {wanted.suffix}"
        )
    for task in attempts:
        if wanted.attempt is None or task["attempt_number"] == wanted.attempt:
            return await _of_attempt(view, wanted, task)
    raise LogNotFound(f"Could not find log file for task attempt:{task_id}({wanted.attempt})")


async def _of_attempt(view: SessionView, wanted: Wanted, task: Row) -> Found:
    where = _task_range(wanted, task)
    path = below_logs(where.path)
    files = {file.path: file for file in await view.logs.files(where.node)}
    candidates = [files[name] for name in _later_names(path) if name in files]
    if not candidates:
        raise LogNotFound(f"A file is not found at: {path}")
    file = await _holding(view.logs, where, task, candidates)
    end = min(where.end, file.size) if where.end >= 0 else file.size
    return Found(where.node, file.path, min(where.start, end), end, complete=where.end >= 0)


async def _holding(logs: Logs, where: Found, task: Row, candidates: list[LogFile]) -> LogFile:
    """The file that has the task's bytes. When it was rotated, the one that took its name may be long enough too.

    Before each task Ray writes its name into the file, so that is what ends where the task's output begins.
    """
    reach = max(where.start, where.end)
    candidates = [file for file in candidates if file.size >= reach] or candidates[:1]
    if len(candidates) == 1:
        return candidates[0]
    mark = f":task_name:{(task['name'] or '').replace('()', '')}\n".encode()
    begin = max(0, where.start - len(mark))
    end = min(where.start + _ENOUGH_TO_COMPARE, reach if where.end >= 0 else min(file.size for file in candidates))
    read = await asyncio.gather(*(logs.read(where.node, file.path, begin, end) for file in candidates))
    blocks, before = dict(zip(candidates, read, strict=True)), where.start - begin
    likely = [file for file in candidates if blocks[file][:before] == mark] or candidates
    if len({blocks[file][before:] for file in likely}) == 1:
        return likely[0]
    raise LogNotFound(
        f"The log of task attempt {task['task_id']}({task['attempt_number']}) was rotated, and it is not known which "
        f"of these files has its output: {', '.join(file.path for file in likely)}"
    )


def _task_range(wanted: Wanted, task: Row) -> Found:
    """The file as the task knew it; an end of -1 is the end of the file."""
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
    stream = f"std{wanted.suffix}"
    if f"{stream}_file" not in info:
        raise LogNotFound(
            f"Missing log filename info in {info} for task {task['task_id']},attempt {task['attempt_number']}"
        )
    return Found(task["node_id"], info[f"{stream}_file"], info.get(f"{stream}_start", 0), info.get(f"{stream}_end", -1))


def below_logs(name: str) -> str:
    """A file's name relative to the logs directory; what would leave it matches no listing."""
    if name.startswith("/"):
        inside = _LOGS_DIR.match(name)
        name = name[inside.end() :] if inside else name
    return posixpath.normpath(name)


def _later_names(path: str) -> Iterable[str]:
    """Where a file may be by now: rotated, or moved away, or both."""
    stem, extension = posixpath.splitext(path)
    for folder in ("", MOVED):
        yield folder + path
        for number in range(1, _MOST_ROTATIONS):
            yield f"{folder}{stem}.{number}{extension}"
            yield f"{folder}{path}.{number}"


def _outputs(files: list[LogFile], suffix: str) -> list[LogFile]:
    """Output files of workers; those still in place come before those that were moved away."""
    found = [file for file in files if (match := _WORKER.fullmatch(file.path)) and match[4] == suffix]
    return sorted(found, key=lambda file: (file.path.startswith(MOVED), file.path))


def _part(file: LogFile, number: int) -> str:
    match = _WORKER.fullmatch(file.path)
    return match[number] if match else ""


def _whole(node: str, file: LogFile) -> Found:
    return Found(node, file.path, 0, file.size)


def _not_found(wanted: Wanted, node: str | None) -> LogNotFound:
    return LogNotFound(
        "Could not find a log file. Please make sure the given option exists in the cluster.\n"
        f"\tnode_id: {node}\n"
        f"\tfilename: {wanted.filename}\n"
        f"\tactor_id: {wanted.actor_id}\n"
        f"\ttask_id: {wanted.task_id}\n"
        f"\tpid: {wanted.pid}\n"
        f"\tsuffix: {wanted.suffix}\n"
        f"\tsubmission_id: {wanted.submission_id}\n"
        f"\tattempt_number: {wanted.attempt or 0}\n"
    )
