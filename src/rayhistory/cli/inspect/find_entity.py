"""Find a job, task, actor or node by an id or its beginning, a name, a class or an address."""

import re

import msgspec

from rayhistory.api.http_client import HistoryClient
from rayhistory.errors import UsageError
from rayhistory.server.history_api.api_types import TableRows

NO_OUTPUT_OF_ITS_OWN = "Ray recorded no output of this task alone"
_MAX_SHOWN_IDS = 5
_ID_PREFIX = re.compile("[0-9a-f]+")


class _Kind(msgspec.Struct, frozen=True):
    noun: str
    table: str
    id_column: str
    id_length: int
    names: tuple[str, ...]
    """Columns to compare with a name, in order. The first match counts."""


_TASK = _Kind("task", "tasks", "task_id", 48, ("name", "func_or_class_name"))
_ACTOR = _Kind("actor", "actors", "actor_id", 32, ("name", "class_name"))
_NODE = _Kind("node", "nodes", "node_id", 56, ("node_ip", "node_name", "hostname"))


async def find_task(client: HistoryClient, text: str) -> str:
    return await _find(client, _TASK, text)


async def find_actor(client: HistoryClient, text: str) -> str:
    return await _find(client, _ACTOR, text)


async def find_node(client: HistoryClient, text: str) -> str:
    return await _find(client, _NODE, text)


async def find_log_node(client: HistoryClient, text: str) -> str:
    """Return the id of a node. Logs may also have a node without events, such as a placeholder."""
    try:
        return await find_node(client, text)
    except UsageError:
        return text


async def find_job(client: HistoryClient, text: str, wanted: str | None = None) -> str:
    """Return the `wanted` id (job_id or submission_id) of the job with this job id or submission id.

    If there is none, return the text.
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


async def actor_of_task(client: HistoryClient, task_id: str) -> str | None:
    """Return the id of the actor that ran a task, or None."""
    rows = await _rows(client, "tasks", f"task_id={task_id}", ("actor_id",))
    return next((str(row["actor_id"]) for row in rows if row["actor_id"]), None)


async def _find(client: HistoryClient, kind: _Kind, text: str) -> str:
    if _is_id(text) and len(text) == kind.id_length:
        return text.lower()
    conditions = [f"{column}={text}" for column in kind.names]
    if _is_id(text):
        conditions.append(f"{kind.id_column}^={text}")
    for condition in conditions:
        rows = await _rows(client, kind.table, condition, (kind.id_column,))
        ids = list(dict.fromkeys(str(row[kind.id_column]) for row in rows))
        if len(ids) == 1:
            return ids[0]
        if ids:
            raise UsageError(_ambiguous(kind, text, ids))
    raise UsageError(f"the session has no {kind.noun} {text!r}: list them with rayhistory {kind.table}")


def _is_id(text: str) -> bool:
    return _ID_PREFIX.fullmatch(text.lower()) is not None


def _ambiguous(kind: _Kind, text: str, ids: list[str]) -> str:
    shown = ", ".join(ids[:_MAX_SHOWN_IDS]) + (", …" if len(ids) > _MAX_SHOWN_IDS else "")
    return f"several {kind.noun}s match {text!r}: use one of the ids {shown}"


async def _rows(
    client: HistoryClient, table: str, condition: str, columns: tuple[str, ...]
) -> list[dict[str, str | int | float | bool | None]]:
    params = {"where": condition, "columns": ",".join(columns), "limit": 100}
    return (await client.json(f"api/history/rows/{table}", TableRows, params)).rows
