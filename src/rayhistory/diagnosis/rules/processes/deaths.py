"""Helpers for rules about dead processes: the process, its last output, and its tasks."""

import re
from urllib.parse import quote

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.findings import Evidence
from rayhistory.diagnosis.headlines import one_line, plural
from rayhistory.diagnosis.rules.rule import Group
from rayhistory.diagnosis.session_facts import SessionFacts, WorkerFacts
from rayhistory.diagnosis.tracebacks import excerpt, plain_text

_LAST_LINES = 30
_MAX_TEXT = 4_000


def dead_worker(failure: Failure, facts: SessionFacts) -> WorkerFacts | None:
    """Return the process of a dead worker, or of an actor that died with its worker."""
    if failure.worker:
        return failure.worker
    if failure.actor:
        return next((worker for id_ in reversed(failure.actor.workers) if (worker := facts.worker(id_))), None)
    return None


def last_words(worker: WorkerFacts, facts: SessionFacts) -> str:
    """Return the end of a worker's stderr. Without its log, return the lines that Ray forwarded to the driver."""
    if worker.stderr is not None:
        return plain_text(worker.stderr)
    job = facts.job(worker.job_id or "")
    if job is None or worker.pid is None:
        return ""
    mark = re.compile(rf"^\([^()\n]{{0,200}}\bpid={worker.pid}\b[^()\n]{{0,100}}\) ?(.*)$", re.MULTILINE)
    return "\n".join(mark.findall(plain_text(job.output or job.message)))


def log_evidence(worker: WorkerFacts, facts: SessionFacts) -> Evidence:
    """Return the last lines of a worker's stderr, or of its stdout if stderr is empty, as evidence."""
    lines, path = excerpt(last_words(worker, facts), _LAST_LINES, _MAX_TEXT), worker.stderr_path
    if not lines:
        output = excerpt(plain_text(worker.stdout), _LAST_LINES, _MAX_TEXT)
        lines, path = (output, worker.stdout_path) if output else ("(stderr is empty)", path)
    url = log_page(worker.node_id, path, "end=1") if worker.node_id and path else None
    return Evidence(kind="log", id=worker.worker_id, text=lines, at_ms=worker.end_ms, url=url)


def log_page(node_id: str, path: str, place: str) -> str:
    """Return the URL of a log file in the log viewer."""
    return f"logs/{quote(node_id, safe='')}/{quote(path)}?{place}"


def exit_evidence(worker: WorkerFacts) -> Evidence:
    """Return Ray's message about the exit of a process, as evidence."""
    url = f"#/cluster/nodes/{quote(worker.node_id, safe='')}" if worker.node_id else None
    text = one_line(worker.exit_detail, 600)
    return Evidence(kind="worker", id=worker.worker_id, text=text, at_ms=worker.end_ms, url=url)


def process_name(group: Group, facts: SessionFacts) -> str:
    """Return the name of the dead process, such as `Worker 4376 on 10.0.0.7 (task train)`.

    For several processes, return their number.
    """
    worker = dead_worker(group.first, facts)
    what = running_in(group)
    inside = f" ({what})" if what else ""
    if len(group.roots) > 1:
        return f"{plural(len(group.roots), 'worker')}{inside}"
    if worker is None:
        return f"A worker{inside}"
    where = f" on {worker.ip}" if worker.ip else ""
    return f"Worker {worker.pid or worker.worker_id[:8]}{where}{inside}"


def running_in(group: Group) -> str:
    """Return the task or the actor that ran in a dead process."""
    actor = next((each for each in (*group.roots, *group.consequences) if each.kind == "actor"), None)
    if actor:
        return f"actor {actor.function}"
    tasks = next((each for each in group.consequences if each.kind == "tasks"), None)
    return f"task {tasks.function}" if tasks else ""


def function_of(failure: Failure, facts: SessionFacts) -> str:
    """Return the function or class that a dead process ran, to group deaths by."""
    worker = dead_worker(failure, facts)
    if worker is None:
        return failure.function
    if actor := facts.actor_in(worker.worker_id):
        return actor.class_name
    return next((group.function for group in facts.failed_in(worker.worker_id)), "")
