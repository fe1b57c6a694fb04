"""SQL for the served tables: join merged rows, and infer states that Ray did not export.

Ray exports no events while it shuts down. When a session has ended, everything that still runs gets an inferred end at
the time of the last event, with `closed_by_history` set.
"""

from datetime import UTC, datetime

from rayhistory.gaps import GapCode
from rayhistory.index.fold.served_tasks import served_tasks_sql
from rayhistory.index.manifest import MERGED_PREFIX
from rayhistory.sessions.records import Closing

# Lines of export files have whole seconds. One that repeats an event is left out: a restart would count twice.
# Only lineage reconstruction revives a dead actor (before 2.54 Ray gives no reason): with more deaths than revivals it
# is dead, whatever the clocks say. Its end and its cause are those of its last life.
_ACTORS = """
WITH reported AS (
  SELECT *, CASE state WHEN 'DEAD' THEN 4 WHEN 'RESTARTING' THEN 3 WHEN 'ALIVE' THEN 2
    WHEN 'PENDING_CREATION' THEN 1 ELSE 0 END AS rank FROM actor_transitions
), changes AS (
  SELECT *, max(ns) FILTER (WHERE state <> 'DEAD') OVER (PARTITION BY actor_id) AS lived_ns FROM reported r
  WHERE reported_by IS NULL OR NOT EXISTS (
    SELECT 1 FROM reported e WHERE e.actor_id = r.actor_id AND e.state = r.state AND e.reported_by IS NULL
      AND e.ns BETWEEN r.ns - 2000000000 AND r.ns + 2000000000)
), lives AS (
  SELECT actor_id, arg_max(state, {'ns': ns, 'rank': rank}) AS newest_state,
    arg_max({'node_id': node_id, 'worker_id': worker_id, 'pid': pid, 'port': port}, {'ns': ns, 'worker': worker_id})
      FILTER (WHERE state = 'ALIVE' AND (reported_by IS DISTINCT FROM 'dashboard' OR worker_id IS NOT NULL)) AS place,
    min(ns) FILTER (WHERE state = 'DEAD' AND ns >= coalesce(lived_ns, ns)) AS death_ns,
    arg_max({'ns': ns, 'cause': death_cause}, {'ns': ns, 'text': death_cause}) FILTER (WHERE state = 'DEAD')
      AS newest_death,
    arg_min(death_cause, {'ns': ns, 'text': death_cause})
      FILTER (WHERE death_cause IS NOT NULL AND ns >= coalesce(lived_ns, ns)) AS cause,
    min(ns) FILTER (WHERE state = 'ALIVE') AS alive_ns, max(ns) AS changed_ns,
    count(DISTINCT ns) FILTER (WHERE state = 'DEAD') AS deaths,
    count(DISTINCT ns) FILTER (WHERE state = 'RESTARTING') AS num_restarts,
    count(DISTINCT ns) FILTER (WHERE state = 'RESTARTING'
      AND coalesce(restart_reason, 'LINEAGE_RECONSTRUCTION') = 'LINEAGE_RECONSTRUCTION') AS revivals,
    count(DISTINCT ns) FILTER (WHERE restart_reason = 'LINEAGE_RECONSTRUCTION') AS lineage_restarts,
    count(DISTINCT ns) FILTER (WHERE restart_reason = 'NODE_PREEMPTION') AS preemption_restarts
  FROM changes GROUP BY actor_id
), names AS (
  -- Also from export files and dashboard responses: before 2.54, events have no name.
  SELECT actor_id, arg_max(repr_name, {'ns': ns, 'name': repr_name}) AS repr_name
  FROM reported WHERE repr_name IS NOT NULL GROUP BY actor_id
), history AS (
  SELECT *, CASE WHEN deaths > revivals THEN 'DEAD' ELSE newest_state END AS last_state,
    CASE WHEN last_state = 'DEAD' THEN coalesce(death_ns, newest_death.ns) END AS dead_ns,
    CASE WHEN last_state = 'DEAD' THEN if(death_ns IS NULL, newest_death.cause, cause) END AS death_cause,
    place.node_id AS node_id, place.worker_id AS worker_id, place.pid AS pid, place.port AS port
  FROM lives LEFT JOIN names USING (actor_id)
)
SELECT actor_id, d.class_name, CASE WHEN {closed} THEN 'DEAD' ELSE coalesce(h.last_state, 'DEPENDENCIES_UNREADY') END
    AS state,
  coalesce(d.job_id, right(actor_id, 8)) AS job_id, d.name, h.node_id, coalesce(h.pid, w.pid) AS pid, d.ray_namespace,
  d.runtime_env, d.required_resources, h.death_cause, coalesce(d.is_detached, false) AS is_detached,
  d.placement_group_id, h.repr_name, coalesce(h.num_restarts, 0) AS num_restarts,
  coalesce(h.lineage_restarts, 0) AS lineage_restarts, coalesce(h.preemption_restarts, 0) AS preemption_restarts,
  d.call_site, d.label_selector, d.fallback_strategy, h.worker_id, h.port, n.node_ip,
  h.alive_ns // 1000000 AS start_time_ms,
  CASE WHEN {closed} THEN {closing_ns} ELSE h.dead_ns END // 1000000 AS end_time_ms,
  h.changed_ns // 1000000 AS changed_ms, d.actor_id IS NOT NULL AS defined, {closed} AS closed_by_history
FROM actor_definitions d FULL OUTER JOIN history h USING (actor_id)
LEFT JOIN node_definitions n ON n.node_id = h.node_id
LEFT JOIN workers w ON w.worker_id = h.worker_id
ORDER BY actor_id
"""

_JOBS = """
WITH completed AS (
  SELECT json_extract_string(custom_fields, '$.submission_id') AS submission_id,
    max(nullif(regexp_extract(message, 'with a status (\\w+)', 1), '')) AS status, max(timestamp_s) * 1000 AS end_ms
  FROM cluster_events WHERE source_type = 'JOBS' AND starts_with(message, 'Completed a ray job') GROUP BY 1
), drivers AS (
  SELECT *, row_number() OVER (PARTITION BY submission_id ORDER BY job_id DESC) AS number FROM driver_jobs
), submissions AS (
  SELECT coalesce(s.submission_id, d.submission_id) AS submission_id, coalesce(d.job_id, s.job_id) AS job_id,
    coalesce(s.entrypoint, d.entrypoint) AS entrypoint,
    CASE WHEN s.submission_id IS NULL THEN d.runtime_env ELSE s.runtime_env END AS runtime_env,
    CASE WHEN s.submission_id IS NULL THEN d.metadata ELSE s.metadata END AS metadata,
    s.driver_agent_http_address, coalesce(s.driver_node_id, d.driver_node_id) AS driver_node_id,
    CASE WHEN s.status IN ('SUCCEEDED', 'FAILED', 'STOPPED') THEN s.status
      ELSE coalesce(c.status, s.status, 'RUNNING') END AS status,
    s.message, s.error_type, s.driver_exit_code,
    coalesce(s.start_ms, d.created_ns // 1000000) AS start_ms,
    coalesce(s.end_ms, c.end_ms) AS end_ms, d.driver_pid, coalesce(d.driver_node_id, s.driver_node_id) AS at_node
  FROM submission_jobs s
  FULL OUTER JOIN (SELECT * FROM drivers WHERE submission_id IS NOT NULL AND number = 1) d USING (submission_id)
  LEFT JOIN completed c ON c.submission_id = coalesce(s.submission_id, d.submission_id)
), listed AS (
  SELECT 'SUBMISSION' AS type, * FROM submissions
  UNION ALL BY NAME
  SELECT 'DRIVER' AS type, NULL AS submission_id, job_id, entrypoint, runtime_env, metadata,
    NULL AS driver_agent_http_address, NULL AS driver_node_id,
    CASE WHEN finished_ns IS NULL THEN 'RUNNING' ELSE 'SUCCEEDED' END AS status, NULL AS message,
    NULL AS error_type, NULL AS driver_exit_code, created_ns // 1000000 AS start_ms, finished_ns // 1000000 AS end_ms,
    driver_pid, driver_node_id AS at_node
  FROM drivers WHERE submission_id IS NULL
)
SELECT type, job_id, submission_id, entrypoint, runtime_env, metadata, driver_agent_http_address, driver_node_id,
  CASE WHEN {open} THEN {closing_status} ELSE status END AS status,
  CASE WHEN {open} THEN {closing_text} ELSE message END AS message,
  error_type, driver_exit_code, start_ms AS start_time,
  CASE WHEN {open} THEN {closing_ns} // 1000000 ELSE end_ms END AS end_time,
  driver_pid, at_node, n.node_ip AS driver_ip, {open} AS closed_by_history
FROM listed LEFT JOIN node_definitions n ON n.node_id = listed.at_node
ORDER BY job_id, submission_id
"""

# A node id is never used again: a node that died stays dead, whatever the clocks say.
_NODES = """
WITH history AS (
  SELECT node_id, CASE WHEN bool_or(state = 'DEAD') THEN 'DEAD' ELSE arg_max(state, ns) END AS last_state,
    min(ns) FILTER (WHERE state = 'ALIVE') AS alive_ns, min(ns) FILTER (WHERE state = 'DEAD') AS dead_ns,
    arg_max({'reason': death_reason, 'message': death_message},
      {'known': death_reason IS NOT NULL, 'ns': ns, 'reason': death_reason, 'message': death_message})
      FILTER (WHERE state = 'DEAD') AS death
  FROM node_transitions GROUP BY node_id
)
SELECT node_id, d.node_ip, d.hostname, d.node_name, d.instance_id, d.instance_type_name, d.labels, d.resources,
  coalesce(d.is_head, contains(d.labels, '"headgroup"'), false) AS is_head,
  CASE WHEN {closed} THEN 'DEAD' ELSE coalesce(h.last_state, 'ALIVE') END AS state,
  CASE WHEN h.last_state = 'DEAD' THEN
    concat_ws(': ', CASE h.death.reason WHEN 'EXPECTED_TERMINATION' THEN 'Expected termination'
      WHEN 'UNEXPECTED_TERMINATION' THEN 'Unexpected termination'
      WHEN 'AUTOSCALER_DRAIN_PREEMPTED' THEN 'Terminated due to preemption'
      WHEN 'AUTOSCALER_DRAIN_IDLE' THEN 'Terminated due to idle (no Ray activity)' END, h.death.message)
    WHEN {closed} THEN {closing_text} END AS state_message,
  coalesce(d.start_ns, h.alive_ns) // 1000000 AS start_time_ms,
  CASE WHEN {closed} THEN {closing_ns} WHEN h.last_state = 'DEAD' THEN h.dead_ns END // 1000000 AS end_time_ms,
  {closed} AS closed_by_history
FROM node_definitions d FULL OUTER JOIN history h USING (node_id)
ORDER BY node_id
"""

_WORKERS = """
WITH all_workers AS (
  SELECT * FROM workers
  UNION ALL BY NAME
  SELECT job_id || repeat('f', 48) AS worker_id, driver_node_id AS node_id, 'DRIVER' AS worker_type, job_id,
    driver_pid AS pid, created_ns // 1000000 AS start_ms, finished_ns // 1000000 AS end_ms, created_ns AS alive_ns,
    finished_ns AS dead_ns
  FROM driver_jobs WHERE job_id || repeat('f', 48) NOT IN (SELECT worker_id FROM workers)
)
SELECT worker_id, coalesce(w.end_ms, w.dead_ns) IS NULL AND NOT {session_closed} AS is_alive,
  coalesce(w.worker_type, 'WORKER') AS worker_type, w.exit_type, w.node_id, coalesce(w.ip, n.node_ip) AS ip, w.pid,
  w.job_id, coalesce(w.exit_detail, CASE WHEN {closed} THEN {closing_text} END) AS exit_detail,
  w.launch_ms, w.launched_ms, coalesce(w.start_ms, w.alive_ns // 1000000) AS start_time_ms,
  coalesce(w.end_ms, w.dead_ns // 1000000, {closing_ns} // 1000000) AS end_time_ms, w.memory_used_bytes,
  {closed} AS closed_by_history
FROM all_workers w LEFT JOIN node_definitions n ON n.node_id = w.node_id
ORDER BY worker_id
"""

_PLACEMENT_GROUPS = """
SELECT placement_group_id, name, creator_job_id, coalesce(state, 'PENDING') AS state,
  coalesce(bundles, defined_bundles) AS bundles, coalesce(is_detached, false) AS is_detached, stats,
  topology_strategy, topology_assignments, seen_ns
FROM placement_groups ORDER BY placement_group_id
"""

TASK_END_TABLES = ("workers", "driver_jobs")
"""Tables that served tasks need besides the task tables, because a running task ends with its worker or job."""

SERVED_AS_MERGED = {
    "profile_events": "task_id, attempt",
    "actor_transitions": "actor_id, ns",
    "cluster_events": "timestamp_s, event_id",
    "platform_events": "ns, event_id",
    "snapshots": "ns, uri",
}
"""Tables that are served as they are after the merge, with their sort order."""
SERVED_TASK_TABLES = ("tasks", "profile_events")
"""Served tables with one file per partition."""


def merged_table_name(table: str) -> str:
    """Return the name under which the merged rows of a table are stored."""
    return table if table in SERVED_AS_MERGED else MERGED_PREFIX + table


_IS_OPEN_JOB = "status IN ('PENDING', 'RUNNING')"


def served_sql(closing: Closing | None) -> dict[str, str]:
    """Return the query of each served table, based on the merged tables."""
    closing = None if closing and closing.open else closing
    ns = str(closing.ns) if closing and closing.ns else "NULL::BIGINT"
    text = _closing_text(closing) if closing else "NULL"

    def fill(template: str, **values: str) -> str:
        values |= {"closing_ns": ns, "closing_text": text}
        for name, value in values.items():
            template = template.replace("{" + name + "}", value)
        return template

    status = "'STOPPED'" if closing and closing.clean else "'FAILED'"
    has_ended = "true" if closing else "false"
    return {
        "tasks": served_tasks_sql(session_closed=closing is not None, closing_ns=ns, closing_text=text),
        "actors": fill(_ACTORS, closed=f"({has_ended} AND coalesce(h.last_state, '') <> 'DEAD')"),
        "jobs": fill(_JOBS, open=f"({has_ended} AND {_IS_OPEN_JOB})", closing_status=status),
        "nodes": fill(_NODES, closed=f"({has_ended} AND coalesce(h.last_state, '') <> 'DEAD')"),
        "workers": fill(
            _WORKERS, session_closed=has_ended, closed=f"({has_ended} AND w.end_ms IS NULL AND w.dead_ns IS NULL)"
        ),
        "placement_groups": _PLACEMENT_GROUPS,
        "gaps": "SELECT * FROM gaps ORDER BY kind, detail, source",
    }


def _closing_text(closing: Closing) -> str:
    """Return the message of inferred ends as an SQL literal. The time of the end can be unknown (0)."""
    ended = datetime.fromtimestamp(closing.ns // 10**9, UTC)
    when = f" at {ended:%Y-%m-%dT%H:%M:%SZ}" if closing.ns else ""
    verb = "ended" if closing.clean else "vanished"
    return f"'The session {verb}{when} before Ray reported an end.'"


TASK_LIST_COLUMNS = (
    "task_id", "attempt_number", "name", "state", "job_id", "actor_id", "type", "func_or_class_name", "parent_task_id",
    "node_id", "worker_id", "worker_pid", "error_type", "creation_time_ms", "start_time_ms", "end_time_ms", "defined",
    "closed_by_history",
)  # fmt: skip
"""Columns of `task_list`, for lists, counts and summaries of tasks."""


def task_list_sql(tasks: str) -> str:
    """Return the query of `task_list`. `position` is the row number in `tasks`. Readers do not see it."""
    columns = ", ".join((*TASK_LIST_COLUMNS, "position"))
    return f"SELECT {columns} FROM {tasks} ORDER BY state, start_time_ms DESC NULLS LAST, task_id"


HAS_NO_EXECUTION = (
    "type <> 'DRIVER_TASK' AND running_ns IS NULL AND pending_actor_task_args_fetch_ns IS NULL AND "
    "pending_actor_task_ordering_or_concurrency_ns IS NULL AND "
    "(finished_ns IS NOT NULL OR (failed_ns IS NOT NULL AND submitted_to_worker_ns IS NOT NULL))"
)
_WORKER_REPORT_MS = 2000
"""Workers report every second. A worker that ends this soon after a task may not have reported the task."""
_WORKER_HAD_ENDED = f"""(
  worker_id IN (
    SELECT w.worker_id FROM {{workers}} w WHERE w.end_time_ms <= unexecuted.end_time_ms + {_WORKER_REPORT_MS})
  OR (worker_id IS NULL AND actor_id IN (
    SELECT a.actor_id FROM {{actors}} a
    WHERE a.num_restarts > 0 OR a.end_time_ms <= unexecuted.end_time_ms + {_WORKER_REPORT_MS})))"""
"""Condition for tasks whose worker ended at about the same time.

Actor creation tasks have no worker id, so the end of their actor counts.

For restarted actors, only the last worker is known.
"""

GAP_CONDITIONS = {
    GapCode.TASK_WITHOUT_DEFINITION: ("tasks", "NOT defined"),
    GapCode.TASK_WITHOUT_EXECUTION: ("unexecuted", f"NOT {_WORKER_HAD_ENDED}"),
    GapCode.TASK_EXECUTION_UNREPORTED: ("unexecuted", _WORKER_HAD_ENDED),
    GapCode.TASK_CLOCK_SKEW: (
        "tasks",
        "running_ns // 1000000 + 1000 < submitted_to_worker_ns // 1000000 OR "
        "coalesce(finished_ns, failed_ns) // 1000000 + 1000 < running_ns // 1000000",
    ),
    # Without an error type, it is not known whether the task was still running.
    GapCode.TASK_OPEN_AT_SESSION_END: ("tasks", "closed_by_history AND error_type IS NOT NULL"),
    GapCode.ACTOR_OPEN_AT_SESSION_END: ("actors", "closed_by_history"),
    GapCode.JOB_OPEN_AT_SESSION_END: ("jobs", "closed_by_history"),
    GapCode.WORKER_OPEN_AT_SESSION_END: ("workers", "closed_by_history"),
    GapCode.NODE_OPEN_AT_SESSION_END: ("nodes", "closed_by_history"),
}
"""For each gap that is counted in a served table: the table, and the condition for the rows to count.

A condition may refer to other served tables in braces. `unexecuted` are tasks that ended without having run, according
to their workers.
"""


def served_queries(closing: Closing | None) -> dict[str, str]:
    """Return the query of each served table, including those that are served as merged."""
    as_merged = {name: f"SELECT * FROM {name} ORDER BY {order}" for name, order in SERVED_AS_MERGED.items()}
    return served_sql(closing) | as_merged
