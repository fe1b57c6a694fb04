"""Find a job, task, actor or node by an id or its beginning, a name, a class or an address."""

import re

import msgspec

from rayhistory.api.http_client import HistoryClient
from rayhistory.errors import UsageError
from rayhistory.server.history_api.api_types import TableRows
from rayhistory.web.format import format_iso

NO_OUTPUT_OF_ITS_OWN = "Ray did not record which output this task wrote"
_MAX_SHOWN_IDS = 5
_MAX_TRANSITIONS = 1_000
_ID_PREFIX = re.compile("[0-9a-f]+")

Row = dict[str, str | int | float | bool | None]


class _Kind(msgspec.Struct, frozen=True):
    noun: str
    table: str
    id_column: str
    id_length: int
    names: tuple[str, ...]
    """Columns to compare with a name, in order. The first match counts."""
    attempt_columns: tuple[str, ...] = ()
    """The column that tells rows of the same id apart, if there can be several."""


_TASK = _Kind("task", "tasks", "task_id", 48, ("name", "func_or_class_name"), ("attempt_number",))
_ACTOR = _Kind("actor", "actors", "actor_id", 32, ("name", "class_name"))
_NODE = _Kind("node", "nodes", "node_id", 56, ("node_ip", "node_name", "hostname"))


async def find_task(client: HistoryClient, text: str) -> str:
    return await _find(client, _TASK, text)


async def find_actor(client: HistoryClient, text: str) -> str:
    return await _find(client, _ACTOR, text)


async def find_node(client: HistoryClient, text: str) -> str:
    return await _find(client, _NODE, text)


async def find_log_node(client: HistoryClient, text: str) -> str:
    """Return the id of the node that a text names. A text that names no node with events is returned unchanged.

    A node, such as one with a placeholder id, can have logs and no events.
    """
    try:
        return await find_node(client, text)
    except UsageError:
        return text


async def find_job(client: HistoryClient, text: str, wanted: str | None = None) -> str:
    """Find a job by its job id or submission id. Return its id of the kind `wanted`; without `wanted`, the given id.

    `wanted` is `job_id` or `submission_id`. Raise UsageError if no job has the given id, or if the job has no id of
    the wanted kind.
    """
    for column in ("submission_id", "job_id"):
        for row in await _rows(client, "jobs", f"{column}={text}", ("job_id", "submission_id")):
            if wanted is None:
                return text
            if row[wanted]:
                return str(row[wanted])
            raise UsageError(
                f"job {text} has no {wanted}: it was not submitted through Ray Jobs, so Ray stored no driver output"
            )
    raise UsageError(f"the session has no job {text!r}: list jobs with rayhistory jobs")


async def task_attempt(
    client: HistoryClient, task_id: str, attempt: int | None, columns: tuple[str, ...]
) -> Row | None:
    """Return these columns of an attempt of a task, by default of the latest; None if the session has none."""
    rows = await _rows(client, "tasks", f"task_id={task_id}", ("attempt_number", *columns))
    if attempt is not None:
        rows = [row for row in rows if row["attempt_number"] == attempt]
    return max(rows, key=lambda row: int(row["attempt_number"] or 0), default=None)


async def count_incarnations(client: HistoryClient, actor_id: str) -> int:
    """Return how often an actor was started: on how many workers. Ray's log API counts them from 0."""
    params = {"where": f"actor_id={actor_id}", "columns": "node_id,worker_id", "limit": _MAX_TRANSITIONS}
    changes = (await client.json("api/history/rows/actor_transitions", TableRows, params)).rows
    return len({(row["node_id"], row["worker_id"]) for row in changes if row["node_id"] and row["worker_id"]})


async def _find(client: HistoryClient, kind: _Kind, text: str) -> str:
    if _is_id(text) and len(text) == kind.id_length:
        return text.lower()
    conditions = [f"{column}={text}" for column in kind.names]
    if _is_id(text):
        conditions.append(f"{kind.id_column}^={text}")
    columns = (kind.id_column, "state", "start_time_ms", *kind.attempt_columns)
    for condition in conditions:
        rows = await _rows(client, kind.table, condition, columns, sort="state,-start_time_ms")
        rows.sort(key=lambda row: [int(row[name] or 0) for name in kind.attempt_columns])
        found = {str(row[kind.id_column]): row for row in rows}  # of a task, the latest attempt
        if len(found) == 1:
            return next(iter(found))
        if found:
            raise UsageError(_ambiguous(kind, text, found))
    raise UsageError(f"the session has no {kind.noun} {text!r}: list them with rayhistory {kind.table}")


def _is_id(text: str) -> bool:
    return _ID_PREFIX.fullmatch(text.lower()) is not None


def _ambiguous(kind: _Kind, text: str, found: dict[str, Row]) -> str:
    """List ids with state and start, failed tasks first: FAILED is alphabetically the first of their states."""
    ordered = sorted(found.items(), key=lambda item: (str(item[1]["state"]), -int(item[1]["start_time_ms"] or 0)))
    shown = ", ".join(f"{found_id} ({_state(row)})" for found_id, row in ordered[:_MAX_SHOWN_IDS])
    more = ", …" if len(found) > _MAX_SHOWN_IDS else ""
    return f"several {kind.noun}s match {text!r}: use one of the ids {shown}{more}"


def _state(row: Row) -> str:
    started = f", started {format_iso(int(row['start_time_ms']))}" if row["start_time_ms"] else ""
    return f"{row['state'] or 'unknown state'}{started}"


async def _rows(
    client: HistoryClient, table: str, condition: str, columns: tuple[str, ...], sort: str = ""
) -> list[Row]:
    params = {"where": condition, "columns": ",".join(columns), "sort": sort, "limit": 100}
    return (await client.json(f"api/history/rows/{table}", TableRows, params)).rows
