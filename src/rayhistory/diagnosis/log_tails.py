"""The ends of log files that explain deaths: stderr of dead workers, and output of failed drivers."""

import re

import msgspec

from rayhistory.diagnosis.session_facts import JobFacts, WorkerFacts
from rayhistory.diagnosis.tracebacks import TRACEBACK_HEADER, cut_lines
from rayhistory.errors import LogNotFound
from rayhistory.logs.source import LogSource, StoredLogFile

TAIL_BYTES = 64 << 10
MAX_WORKER_TAILS = 100
MAX_DRIVER_TAILS = 50
_MAX_LISTED_NODES = 10
_MAX_RAYLET_LOGS = 20
_RAYLET_BYTES = 1 << 20
_PROCESS_END = re.compile(r"\bprocess (\d{1,9}) exited (with status|from signal) (\d{1,4})\b")
_LONG_OUTPUT_BYTES = (1 << 20, 16 << 20)
_MARKER_LINES = re.compile(r"^:(?:job_id|actor_name|task_name):.*\n?", re.MULTILINE)
_READ_FOR = ("SYSTEM_ERROR", "USER_ERROR")


async def has_files(logs: LogSource) -> bool:
    """Return True if one of the first nodes has a log file."""
    for node in (await logs.nodes())[:_MAX_LISTED_NODES]:
        if await logs.files(node):
            return True
    return False


async def read_stderr_tails(logs: LogSource, workers: list[WorkerFacts]) -> list[WorkerFacts]:
    """Add the end of stderr to the first workers that died for an unknown reason."""
    chosen = [worker for worker in workers if worker.exit_type in _READ_FOR and worker.node_id][:MAX_WORKER_TAILS]
    tails = {worker.worker_id: await _with_tail(logs, worker) for worker in chosen}
    return [tails.get(each.worker_id, each) for each in workers]


async def _with_tail(logs: LogSource, worker: WorkerFacts) -> WorkerFacts:
    node = worker.node_id or ""
    mark = f"worker-{worker.worker_id}-"
    files = {file.path[-4:]: file for file in reversed(await logs.files(node)) if mark in file.path}
    if ".err" not in files:
        return worker
    stderr = await _worker_output(logs, node, files[".err"])
    found = msgspec.structs.replace(worker, stderr=stderr, stderr_path=files[".err"].path)
    if stderr is None or stderr.strip() or ".out" not in files:
        return found
    stdout = await _worker_output(logs, node, files[".out"])
    return msgspec.structs.replace(found, stdout=stdout or "", stdout_path=files[".out"].path)


async def _worker_output(logs: LogSource, node: str, file: StoredLogFile) -> str | None:
    text = await _tail(logs, node, file)
    return None if text is None else _MARKER_LINES.sub("", text)


async def read_exit_statuses(logs: LogSource, workers: list[WorkerFacts]) -> list[WorkerFacts]:
    """Add the exit status of processes, if their raylet logged it."""
    nodes = dict.fromkeys(each.node_id for each in workers if each.exit_type == "SYSTEM_ERROR" and each.node_id)
    ends = {node: await _process_ends(logs, node) for node in list(nodes)[:_MAX_RAYLET_LOGS]}
    return [_with_end(worker, ends.get(worker.node_id or "", {})) for worker in workers]


async def _process_ends(logs: LogSource, node: str) -> dict[int, tuple[str, int]]:
    """Return the exit status of a raylet's child processes by process id."""
    files = [file for file in await logs.files(node) if file.path == "raylet.out"]
    text = (await _tail(logs, node, files[0], _RAYLET_BYTES) if files else None) or ""
    return {int(pid): (how, int(number)) for pid, how, number in _PROCESS_END.findall(text)}


def _with_end(worker: WorkerFacts, ends: dict[int, tuple[str, int]]) -> WorkerFacts:
    how, number = ends.get(worker.pid or 0, ("", 0))
    if not how:
        return worker
    name = "exit_signal" if how == "from signal" else "exit_status"
    return msgspec.structs.replace(worker, **{name: number})


async def read_driver_outputs(logs: LogSource, jobs: list[JobFacts]) -> list[JobFacts]:
    """Add the end of the output to failed jobs, because Ray's message has only its last lines."""
    chosen = [job for job in jobs if job.status == "FAILED" and job.submission_id and job.node_id][:MAX_DRIVER_TAILS]
    outputs = {job.id: await _driver_output(logs, job) for job in chosen}
    return [msgspec.structs.replace(job, output=outputs.get(job.id) or "") for job in jobs]


async def _driver_output(logs: LogSource, job: JobFacts) -> str | None:
    name = f"job-driver-{job.submission_id}.log"
    for file in await logs.files(job.node_id or ""):
        if file.path == name:
            return await _last_output(logs, job.node_id or "", file)
    return None


async def _last_output(logs: LogSource, node: str, file: StoredLogFile) -> str | None:
    """Return the end of an output.

    If a very long line leaves no room for a traceback, read more of the output, and return the last traceback with long
    lines shortened.
    """
    text = await _tail(logs, node, file)
    if text is None or TRACEBACK_HEADER in text or len(max(text.splitlines(), key=len, default="")) < TAIL_BYTES // 2:
        return text
    for size in _LONG_OUTPUT_BYTES:
        longer = await _tail(logs, node, file, size) or ""
        if (start := longer.rfind(TRACEBACK_HEADER)) >= 0:
            return cut_lines(longer[start:])[-TAIL_BYTES:]
    return text


async def _tail(logs: LogSource, node: str, file: StoredLogFile, max_bytes: int = TAIL_BYTES) -> str | None:
    try:
        data = await logs.read(node, file.path, max(0, file.size - max_bytes), file.size)
    except LogNotFound:
        return None
    return data.decode(errors="replace")
