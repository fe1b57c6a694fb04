"""The ends of log files that explain deaths: stderr of dead workers, and the output of failed drivers."""

import msgspec

from rayhistory.diagnosis.session_facts import JobFacts, WorkerFacts
from rayhistory.errors import LogNotFound
from rayhistory.logs.source import LogSource, StoredLogFile

TAIL_BYTES = 64 << 10
MAX_WORKER_TAILS = 100
MAX_DRIVER_TAILS = 50
_MAX_LISTED_NODES = 10
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
    tails = {worker.worker_id: await _worker_tail(logs, worker) for worker in chosen}
    return [msgspec.structs.replace(each, stderr=tails[each.worker_id]) if each.worker_id in tails else each
            for each in workers]  # fmt: skip


async def _worker_tail(logs: LogSource, worker: WorkerFacts) -> str | None:
    node = worker.node_id or ""
    mark = f"worker-{worker.worker_id}-"
    files = [file for file in await logs.files(node) if mark in file.path and file.path.endswith(".err")]
    return await _tail(logs, node, files[0]) if files else None


async def read_driver_outputs(logs: LogSource, jobs: list[JobFacts]) -> list[JobFacts]:
    """Add the end of the output to failed jobs: Ray's message has only its last lines."""
    chosen = [job for job in jobs if job.status == "FAILED" and job.submission_id and job.node_id][:MAX_DRIVER_TAILS]
    outputs = {job.id: await _driver_output(logs, job) for job in chosen}
    return [msgspec.structs.replace(job, output=outputs.get(job.id) or "") for job in jobs]


async def _driver_output(logs: LogSource, job: JobFacts) -> str | None:
    name = f"job-driver-{job.submission_id}.log"
    for file in await logs.files(job.node_id or ""):
        if file.path == name:
            return await _tail(logs, job.node_id or "", file)
    return None


async def _tail(logs: LogSource, node: str, file: StoredLogFile) -> str | None:
    try:
        data = await logs.read(node, file.path, max(0, file.size - TAIL_BYTES), file.size)
    except LogNotFound:
        return None
    return data.decode(errors="replace")
