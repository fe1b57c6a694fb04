"""Groups of failed and waiting tasks, counted in the database because there may be millions.

Failures of one group have the same job, function and error type, and, if a worker, actor or node died, the same one.
Exceptions are grouped by their type and their last stack frame outside of libraries, other errors by their text without
numbers. So messages that differ only in numbers are in one group.
"""

from functools import partial
from typing import Any

import msgspec

from rayhistory.errors import StoreUnavailable
from rayhistory.index.query.database import execute
from rayhistory.index.query.open_index import OpenIndex

MAX_GROUPS = 1_000
_TAIL_CHARS = 6_000
"""Length of the end of an error message, which contains the exception and its last frames."""
_MAX_TEXT_CHARS = 16_000
"""Maximum length of a group's example text."""
_HEAD_CHARS = 4_000
"""If an example text is too long, its middle is cut out. This many characters of its beginning are kept."""
JOB_END_MESSAGE = "Job finishes ("
"""Start of the message of tasks that ended because their job ended."""
_FRAME = """E'\\n  File "'"""
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "python/ray/", "<frozen ")
_WORKER_ERRORS = ("WORKER_DIED", "OUT_OF_MEMORY", "NODE_DIED", "LOCAL_RAYLET_DIED")
_ACTOR_ERRORS = ("ACTOR_DIED", "ACTOR_UNAVAILABLE", "ACTOR_CREATION_FAILED", "ACTOR_UNSCHEDULABLE_ERROR")


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Failed attempts that probably have the same cause."""

    job_id: str
    error_type: str
    function: str
    type: str
    retried: bool
    """True if later attempts exist, so that these failures were not final."""
    at_job_end: bool
    """True if Ray ended these tasks because their job had ended."""
    worker_id: str | None
    actor_id: str | None
    node_id: str | None
    count: int
    first_ms: int | None
    last_ms: int | None
    started_ms: int | None = None
    """Time when the first of these tasks started, or was sent to its worker; None if none was."""
    run_ms: int
    """Total run time of all attempts of the group."""
    task_id: str
    """Task id of the first failed attempt."""
    attempt: int
    message: str


class WaitingGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks that were never placed on a node."""

    job_id: str
    function: str
    type: str
    state: str
    required_resources: str | None
    label_selector: str | None
    count: int
    since_ms: int | None
    until_ms: int | None
    task_id: str
    actor_id: str | None


class FailureGroups(msgspec.Struct, frozen=True):
    groups: list[FailureGroup]
    total: int
    """Number of all final failures, including those in unlisted groups."""
    total_groups: int

    @property
    def unlisted(self) -> int:
        """Number of final failures in unlisted groups."""
        return max(0, self.total - sum(group.count for group in self.groups if _is_final(group)))


def _is_final(group: FailureGroup) -> bool:
    return not group.retried and not group.at_job_end


def _is_library(frame: str) -> str:
    return " OR ".join(f"contains(split_part({frame}, '\"', 1), '{part}')" for part in _LIBRARIES)


def _in(column: str, values: tuple[str, ...]) -> str:
    quoted = ", ".join(f"'{value}'" for value in values)
    return f"{column} IN ({quoted})"


_FAILED = f"""
WITH failed AS (
  SELECT task_id, attempt_number, coalesce(job_id, '') AS job_id, coalesce(error_type, '') AS error_type, actor_id,
    node_id, worker_id, coalesce(func_or_class_name, name, '') AS function, type, end_time_ms,
    coalesce(running_ns, submitted_to_worker_ns) // 1000000 AS started_ms,
    greatest(end_time_ms - start_time_ms, 0) AS run_ms, right(coalesce(error_message, ''), {_TAIL_CHARS}) AS tail,
    starts_with(error_message, '{JOB_END_MESSAGE}') AS at_job_end
  FROM {{tasks}} WHERE state = 'FAILED' AND NOT closed_by_history AND type <> 'DRIVER_TASK'
), retries AS (
  SELECT task_id, max(attempt_number) AS last FROM {{list}} WHERE attempt_number > 0 GROUP BY task_id
), split AS (
  SELECT f.*, coalesce(r.last > f.attempt_number, false) AS retried, string_split(tail, {_FRAME}) AS frames
  FROM failed f LEFT JOIN retries r USING (task_id)
), keyed AS (
  SELECT * EXCLUDE (tail, frames, worker_id, actor_id, node_id),
    CASE WHEN {_in("error_type", _WORKER_ERRORS)} AND NOT coalesce(at_job_end, false) THEN worker_id END AS at_worker,
    CASE WHEN {_in("error_type", _ACTOR_ERRORS)} OR type = 'ACTOR_CREATION_TASK' THEN actor_id END AS at_actor,
    CASE WHEN error_type = 'NODE_DIED' THEN node_id END AS at_node,
    CASE WHEN len(frames) > 1 THEN hash(
        coalesce(list_filter(frames[2:], lambda frame: NOT ({_is_library("frame")}))[-1], frames[-1])
          .split_part(E'\\n', 1),
        regexp_extract(frames[-1], E'\\n([A-Za-z_][A-Za-z0-9_.]*)', 1))
      ELSE hash(regexp_replace(left(tail, 300), '[0-9a-f]{{{{8,}}}}|[0-9]+', '#', 'g')) END AS key
  FROM split
)
SELECT job_id, error_type, function, type, retried, coalesce(at_job_end, false) AS at_job_end, at_worker AS worker_id,
  at_actor AS actor_id, at_node AS node_id, count(*) AS count, min(end_time_ms) AS first_ms,
  max(end_time_ms) AS last_ms, min(started_ms) AS started_ms, coalesce(sum(run_ms), 0)::BIGINT AS run_ms,
  arg_min({{{{'task_id': task_id, 'attempt': attempt_number}}}}, (coalesce(end_time_ms, 0), task_id)) AS example,
  (sum(count(*)) FILTER (WHERE NOT retried AND NOT coalesce(at_job_end, false)) OVER ())::BIGINT AS total,
  count(*) OVER () AS total_groups
FROM keyed
GROUP BY job_id, error_type, function, type, retried, at_job_end, at_worker, at_actor, at_node, key
ORDER BY count DESC, first_ms, job_id, function LIMIT {MAX_GROUPS}
"""

_FAILED_WITHOUT_TEXT = _FAILED.replace(f"right(coalesce(error_message, ''), {_TAIL_CHARS})", "''").replace(
    f"starts_with(error_message, '{JOB_END_MESSAGE}')", "false"
)
"""The query `_FAILED` without messages, because they may be too long for the memory of a query."""

_MESSAGES = f"""
SELECT task_id, attempt_number AS attempt, CASE WHEN length(error_message) <= {_MAX_TEXT_CHARS} THEN error_message
  ELSE left(error_message, {_HEAD_CHARS}) || E'\\n  …\\n' || right(error_message, {_MAX_TEXT_CHARS - _HEAD_CHARS}) END
  AS message
FROM {{tasks}} WHERE state = 'FAILED' AND task_id IN (SELECT unnest(from_json(?, '["VARCHAR"]')))
"""

_WAITING = f"""
SELECT coalesce(job_id, '') AS job_id, coalesce(func_or_class_name, name, '') AS function, type,
  CASE WHEN pending_node_assignment_ns IS NULL THEN 'PENDING_ARGS_AVAIL' ELSE 'PENDING_NODE_ASSIGNMENT' END AS state,
  required_resources, label_selector, count(*) AS count, min(creation_time_ms) AS since_ms,
  max(end_time_ms) AS until_ms, min(task_id) AS task_id, min(actor_id) AS actor_id
FROM {{tasks}}
WHERE type IN ('NORMAL_TASK', 'ACTOR_CREATION_TASK') AND defined AND submitted_to_worker_ns IS NULL
  AND running_ns IS NULL AND finished_ns IS NULL AND pending_args_avail_ns IS NOT NULL
  AND (failed_ns IS NULL OR error_type IN ('TASK_UNSCHEDULABLE_ERROR', 'ACTOR_UNSCHEDULABLE_ERROR', 'TASK_CANCELLED'))
GROUP BY ALL ORDER BY count DESC, since_ms LIMIT {MAX_GROUPS}
"""


async def read_failure_groups(index: OpenIndex) -> FailureGroups:
    """Return the groups of failed attempts, the largest first, each with the message of its first attempt.

    If the messages are too long for the memory of a query, failures are grouped without them.
    """

    try:
        return await index.read(("tasks", "task_list"), partial(_read_groups, _FAILED))
    except StoreUnavailable:  # a thousand messages of 100 kB do not fit into the memory of a query
        return await index.read(("tasks", "task_list"), partial(_read_groups, _FAILED_WITHOUT_TEXT))


def _read_groups(sql: str, tasks: str, task_list: str) -> FailureGroups:
    rows = execute(sql.format(tasks=tasks, list=task_list), [])
    if not rows:
        return FailureGroups([], 0, 0)
    messages = _messages(tasks, rows) if sql is _FAILED else {}
    groups = [_group(row, messages) for row in rows]
    return FailureGroups(groups, rows[0]["total"] or 0, rows[0]["total_groups"])


def _messages(tasks: str, rows: list[dict[str, Any]]) -> dict[tuple[str, int], str]:
    wanted = {(row["example"]["task_id"], row["example"]["attempt"]) for row in rows}
    ids = msgspec.json.encode(sorted({task for task, _ in wanted})).decode()
    found = execute(_MESSAGES.format(tasks=tasks), [ids])
    return {key: row["message"] or "" for row in found if (key := (row["task_id"], row["attempt"])) in wanted}


def _group(row: dict[str, Any], messages: dict[tuple[str, int], str]) -> FailureGroup:
    example = row["example"]
    fields = {name: value for name, value in row.items() if name in FailureGroup.__struct_fields__}
    message = messages.get((example["task_id"], example["attempt"]), "")
    return FailureGroup(**fields, task_id=example["task_id"], attempt=example["attempt"], message=message)


async def read_waiting_groups(index: OpenIndex) -> list[WaitingGroup]:
    """Return the groups of tasks that were never assigned to a node."""

    def work(tasks: str) -> list[WaitingGroup]:
        return [WaitingGroup(**row) for row in execute(_WAITING.format(tasks=tasks), [])]

    return await index.read(("tasks",), work)
