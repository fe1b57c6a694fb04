"""Differences between KubeRay's log API and Ray's, for clients that select a session with KubeRay's cookies."""

import re

from starlette.datastructures import QueryParams

from rayhistory.errors import LogNotFound, RayHistoryError, UsageError
from rayhistory.index.query.query import Filter
from rayhistory.server.view import SessionView

LOG_FILE = "/api/v0/logs/file"
_NUMBERS = ("lines", "timeout", "attempt_number", "pid")
_CHOICES = {"suffix": ("out", "err"), "filter_ansi_code": ("true", "false")}
_TOKEN = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_GLOB_CHARACTERS = frozenset("*?[{\\")


def check_log_parameters(query: QueryParams) -> None:
    """Raise UsageError for requests that KubeRay refuses before it looks for a file, even for a live cluster."""
    if not any(query.get(name) for name in ("node_id", "node_ip", "actor_id", "task_id")):
        raise UsageError("node_id, node_ip, actor_id or task_id is required")
    if not any(query.get(name) for name in ("filename", "actor_id", "task_id", "pid", "submission_id")):
        raise UsageError("filename, actor_id, task_id or pid is required")
    for name in _NUMBERS:
        if query.get(name) and not re.fullmatch(r"[+-]?\d{1,18}", query[name], re.ASCII):
            raise UsageError(f"{name} must be a whole number, not {query[name]!r}")
    for name, choices in _CHOICES.items():
        if query.get(name) and query[name].lower() not in choices:
            raise UsageError(f"{name} must be one of {', '.join(choices)}, not {query[name]!r}")
    for name in ("node_id", "filename"):
        if query.get(name) and {"", ".", ".."} & {*query[name].split("/")}:
            raise UsageError(f"{name} is not a valid path: {query[name]!r}")


async def check_log_query(view: SessionView, query: QueryParams) -> None:
    """Check a request for a file of a dead cluster; raise LogNotFound for an IP address that no node had."""
    check_log_parameters(query)
    node_ip = query.get("node_ip")
    if node_ip and await view.row("nodes", Filter("node_ip", "=", node_ip)) is None:
        raise LogNotFound(f"node with IP {node_ip} not found")


def file_of_attempt(query: QueryParams) -> str | None:
    """Return the requested file name. KubeRay appends the parameter `attempt_number` to it as a rotation number."""
    attempt = int(query.get("attempt_number") or 0)
    return f"{query['filename']}.{attempt}" if query.get("filename") and attempt > 0 else query.get("filename")


async def log_error_status(view: SessionView, query: QueryParams, error: RayHistoryError) -> int:
    """Return 400 for an unknown task or actor, as KubeRay does. Otherwise return the error's status."""
    for table, column in (("tasks", "task_id"), ("actors", "actor_id")):
        named = query.get(column)
        if named and not query.get("filename") and await view.row(table, Filter(column, "=", named.lower())) is None:
            return UsageError.http_status
    return error.http_status


def names_in_folder(groups: dict[str, list[str]], glob: str) -> dict[str, list[str]]:
    """Shorten the names of a listing: remove the directories that the glob begins with, up to its first wildcard."""
    folder = ""
    for part in glob.split("/")[:-1]:
        if _GLOB_CHARACTERS & {*part}:
            break
        folder += f"{part}/"
    return {group: [name.removeprefix(folder) for name in names] for group, names in groups.items()}


def unquoted_attachment(name: str) -> str | None:
    """Return the header Content-Disposition as KubeRay sends it, without quotes; None if the name needs quotes."""
    return f"attachment; filename={name}" if _TOKEN.fullmatch(name) else None
