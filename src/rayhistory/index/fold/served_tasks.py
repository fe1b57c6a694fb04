"""SQL for the served table `tasks`: made from merged rows or, as of a point in time, from the latest rows of `tasks`.

When a worker dies or a job ends, Ray marks its tasks as failed, but exports no event. This SQL does the same.

A served row has the last known values. Hidden columns (`AS_OF_COLUMNS`) store reported values and times that the row
does not show. They suffice to compute the row as of any earlier time, without joins, sorting or new files.
"""

from rayhistory.events.table_columns import TASK_STATES, state_column

AS_OF_COLUMNS = (
    "definition_job_id", "definition_type", "defined_ns", "updated_ns", "update_job_id", "placed_ns", "placed_pid",
    "process_ns", "process_pid", "paused_ns", "resumed_ns", "actor_repr_name", "plain_name", "error_ns",
    "update_error_type",
    "update_error_message", "is_error_shown", "is_end_inferred", "undefined_spans",
)  # fmt: skip
"""Hidden columns in the files of `tasks`."""

_DEFINITION_COLUMNS = (
    "language", "parent_task_id", "placement_group_id", "required_resources", "label_selector", "fallback_strategy",
    "runtime_env", "call_site",
)  # fmt: skip
_LOG_COLUMNS = ("stdout_file", "stderr_file", "stdout_start", "stdout_end", "stderr_start", "stderr_end")
_STATE_COLUMNS = [state_column(state) for state in TASK_STATES]

_TYPE_BY_ID = """CASE WHEN starts_with({id}, repeat('f', 40)) THEN 'DRIVER_TASK'
      WHEN starts_with({id}, repeat('f', 16)) THEN 'ACTOR_CREATION_TASK'
      WHEN substr({id}, 17, 24) <> repeat('f', 24) THEN 'ACTOR_TASK' ELSE 'NORMAL_TASK' END"""
_ACTOR_BY_ID = "CASE WHEN substr({id}, 17, 24) <> repeat('f', 24) THEN substr({id}, 17, 32) END"

_SPANS = '[{"eventName": "VARCHAR", "endTime": "VARCHAR", "extraData": "VARCHAR"}]'
_TRACEBACK = """CASE WHEN span.eventName = 'task:execute' AND json_valid(span.extraData)
      THEN json_extract_string(span.extraData, '$.traceback') END"""
_AS_OF_SPANS = '[{"name": "VARCHAR", "ns": "BIGINT", "traceback": "VARCHAR"}]'

_FIRST_STATE_NS = f"least({', '.join('u.' + column for column in _STATE_COLUMNS)})"
DEFINED_IN_TIME = f"""(
    SELECT d.task_id, d.attempt FROM task_definitions d
    LEFT JOIN task_updates u ON d.task_id = u.task_id AND d.attempt = u.attempt
    WHERE coalesce(d.defined_ns <= {_FIRST_STATE_NS}, {_FIRST_STATE_NS} IS NULL))"""
"""Query of the attempts whose definition is not later than their first state.

All other attempts can have a time at which only their profile events are known. Name and end are then taken from these.
"""

_KNOWN_FROM_MERGED = f"""
orphans AS (
  SELECT task_id, attempt, unnest(from_json(spans, '{_SPANS}')) AS span
  FROM profile_events ANTI JOIN {DEFINED_IN_TIME} USING (task_id, attempt)
), spans AS (
  SELECT task_id, attempt, span.eventName AS name, try_cast(span.endTime AS BIGINT) AS ns, {_TRACEBACK} AS traceback
  FROM orphans
), names AS (
  SELECT task_id, attempt, min(substr(name, 7)) FILTER (WHERE starts_with(name, 'task::')) AS profile_name,
    max(ns) FILTER (WHERE name = 'task:store_outputs') AS stored_ns,
    max(ns) FILTER (WHERE traceback IS NOT NULL) AS raised_ns, max(traceback) AS traceback,
    to_json(list_sort(list({{'name': name, 'ns': ns, 'traceback': traceback}})
      FILTER (WHERE starts_with(name, 'task::') OR name = 'task:store_outputs' OR traceback IS NOT NULL)))::VARCHAR
      AS undefined_spans
  FROM spans GROUP BY ALL
), pairs AS (
  SELECT coalesce(d.task_id, u.task_id) AS task_id, coalesce(d.attempt, u.attempt)::BIGINT AS attempt_number,
    d.task_id IS NOT NULL AS defined, coalesce(d.type, {_TYPE_BY_ID.format(id="u.task_id")}) AS type,
    d.name AS definition_name, d.func_or_class_name AS definition_function, d.actor_id AS definition_actor_id,
    d.job_id AS definition_job_id, d.type AS definition_type, d.defined_ns,
    {", ".join(f"d.{column}" for column in _DEFINITION_COLUMNS)},
    {_FIRST_STATE_NS} AS updated_ns, u.job_id AS update_job_id,
    u.node_id, u.worker_id, u.placed_ns, u.worker_pid AS placed_pid, u.process_ns,
    u.process_pid, u.paused_ns, u.resumed_ns, u.actor_repr_name, u.error_ns, u.error_type AS update_error_type,
    u.error_message AS update_error_message,
    {", ".join(f"u.{column}" for column in (*_LOG_COLUMNS, *_STATE_COLUMNS))}
  FROM task_definitions d FULL OUTER JOIN task_updates u ON d.task_id = u.task_id AND d.attempt = u.attempt
), known AS NOT MATERIALIZED (
  SELECT p.*, coalesce(definition_job_id, update_job_id, right(p.task_id, 8)) AS job_id,
    coalesce(definition_actor_id, {_ACTOR_BY_ID.format(id="p.task_id")}) AS actor_id,
    coalesce(definition_name, definition_function, if(defined, NULL, n.profile_name), '') AS plain_name,
    coalesce(definition_function, if(defined, NULL, n.profile_name), '') AS func_or_class_name,
    if(defined, NULL, n.stored_ns) AS stored_ns, if(defined, NULL, n.raised_ns) AS raised_ns,
    if(defined, NULL, n.traceback) AS traceback, n.undefined_spans
  FROM pairs p LEFT JOIN names n ON n.task_id = p.task_id AND n.attempt = p.attempt_number
)"""

_UPDATE_NS = {
    column: f"if(is_end_inferred, NULL, {column})" if column in ("finished_ns", "failed_ns") else column
    for column in _STATE_COLUMNS
}
_HAS_RUN = "running_ns <= {t}"
# Materialized, the rows would have all columns, and not only those that a query needs.
_KNOWN_AS_OF = f"""
workers AS NOT MATERIALIZED {{workers}}, driver_jobs AS NOT MATERIALIZED {{driver_jobs}}, dated AS NOT MATERIALIZED (
  SELECT *, coalesce(defined_ns <= {{t}}, false) AS is_defined,
    coalesce(updated_ns <= {{t}}, false) AS is_updated
  FROM {{rows}}
), profiled AS NOT MATERIALIZED (
  SELECT *, CASE WHEN undefined_spans IS NOT NULL AND is_updated AND NOT is_defined
    THEN list_filter(from_json(undefined_spans, '{_AS_OF_SPANS}'), lambda s: s.ns <= {{t}}) END AS spans
  FROM dated WHERE is_defined OR is_updated
), named AS NOT MATERIALIZED (
  SELECT *, list_min(list_transform(list_filter(spans, lambda s: starts_with(s.name, 'task::')),
      lambda s: substr(s.name, 7))) AS profile_name
  FROM profiled
), known AS NOT MATERIALIZED (
  SELECT task_id, attempt_number, is_defined AS defined,
    coalesce(if(is_defined, definition_job_id, NULL), if(is_updated, update_job_id, NULL), right(task_id, 8)) AS job_id,
    coalesce(if(is_defined, definition_type, NULL),
      if(is_updated, {_TYPE_BY_ID.format(id="task_id")}, 'NORMAL_TASK')) AS type,
    if(is_defined, coalesce(plain_name, name), coalesce(profile_name, '')) AS plain_name,
    if(is_defined, func_or_class_name, coalesce(profile_name, '')) AS func_or_class_name,
    if(is_defined, actor_id, {_ACTOR_BY_ID.format(id="task_id")}) AS actor_id,
    {", ".join(f"if(is_defined, {column}, NULL) AS {column}" for column in _DEFINITION_COLUMNS)},
    if(is_updated AND placed_ns <= {{t}}, node_id, NULL) AS node_id,
    if(is_updated AND placed_ns <= {{t}}, worker_id, NULL) AS worker_id,
    if(is_updated AND placed_ns <= {{t}}, placed_pid, NULL) AS placed_pid,
    if(is_updated AND process_ns <= {{t}}, process_pid, NULL) AS process_pid,
    if(is_updated AND paused_ns <= {{t}}, paused_ns, NULL) AS paused_ns,
    if(is_updated AND resumed_ns <= {{t}}, resumed_ns, NULL) AS resumed_ns,
    {", ".join(f"if({_HAS_RUN}, {column}, NULL) AS {column}" for column in ("actor_repr_name", *_LOG_COLUMNS))},
    if(is_updated AND error_ns <= {{t}}, update_error_type, NULL) AS update_error_type,
    if(is_updated AND error_ns <= {{t}}, if(is_error_shown, error_message, update_error_message), NULL)
      AS update_error_message,
    list_max(list_transform(list_filter(spans, lambda s: s.name = 'task:store_outputs'), lambda s: s.ns)) AS stored_ns,
    list_max(list_transform(list_filter(spans, lambda s: s.traceback IS NOT NULL), lambda s: s.ns)) AS raised_ns,
    list_max(list_transform(spans, lambda s: s.traceback)) AS traceback,
    {", ".join(f"if({ns} <= {{t}}, {column}, NULL) AS {column}" for column, ns in _UPDATE_NS.items())}
  FROM named
)"""

_IS_PAUSED = "CASE WHEN paused_ns > coalesce(resumed_ns, 0) THEN true WHEN resumed_ns IS NOT NULL THEN false END"
_STATE_CASE = "\n".join(
    f"      WHEN {state_column(state)} IS NOT NULL THEN '{state}'" for state in reversed(TASK_STATES)
)
# Without the driver's half, a task that ends with its job, or with a worker that left, may have ended before, anyhow.
_ENDED_UNKNOWN = (
    "NOT defined AND (closed_by = 'job' OR (closed_by = 'worker' AND starts_with(coalesce(exit_type, ''), 'INTENDED')))"
)
_NAME = """CASE WHEN actor_repr_name IS NOT NULL AND type = 'ACTOR_TASK' AND plain_name = func_or_class_name
    THEN actor_repr_name || '.' || split_part(func_or_class_name, '.', -1) ELSE plain_name END"""
# Only the worker reports an actor's restart. Ray counts it at the actor and does not list it as a task.
_IS_LISTED = "defined OR type <> 'ACTOR_CREATION_TASK' OR attempt_number = 0"

_IS_OPEN = "j.finished_ns IS NULL AND j.failed_ns IS NULL"

# If the driver exported no events, only the worker's half is known. Its profile shows how the task ended: outputs were
# stored, or an exception was raised.
_SERVED = f"""
WITH {{known}}, joined AS NOT MATERIALIZED (
  SELECT * REPLACE (
      coalesce(finished_ns, CASE WHEN failed_ns IS NULL THEN stored_ns END) AS finished_ns,
      coalesce(failed_ns, CASE WHEN finished_ns IS NULL THEN raised_ns END) AS failed_ns),
    finished_ns IS NULL AND failed_ns IS NULL AND coalesce(stored_ns, raised_ns) IS NOT NULL AS is_end_inferred,
    {_IS_PAUSED} AS is_debugger_paused,
    coalesce(update_error_type, CASE WHEN raised_ns IS NOT NULL THEN 'TASK_EXECUTION_EXCEPTION' END)
      AS reported_error_type,
    coalesce(update_error_message, traceback) AS reported_error_message
  FROM known
), closings AS NOT MATERIALIZED (
  -- Only open attempts look for the end of their worker and job: a join with NULL costs little.
  SELECT j.*, CASE WHEN NOT ({_IS_OPEN}) THEN NULL WHEN w.worker_id IS NOT NULL THEN 'worker'
      WHEN b.job_id IS NOT NULL THEN 'job' WHEN {{session_closed}} THEN 'session' END AS closed_by,
    coalesce(coalesce(w.end_ms * 1000000, w.dead_ns), b.finished_ns, {{closing_ns}}) AS open_end_ns,
    w.exit_type, w.exit_detail, coalesce(j.placed_pid, if(j.process_pid IS NULL, NULL, p.pid), j.process_pid) AS pid
  FROM joined j
  LEFT JOIN workers p ON p.worker_id = if(j.placed_pid IS NULL AND j.process_pid IS NOT NULL, j.worker_id, NULL)
  LEFT JOIN workers w ON w.worker_id = if({_IS_OPEN}, j.worker_id, NULL)
    AND (w.dead_ns IS NOT NULL OR w.end_ms IS NOT NULL)
  LEFT JOIN driver_jobs b ON b.job_id = if({_IS_OPEN}, j.job_id, NULL) AND b.finished_ns IS NOT NULL
), finished AS NOT MATERIALIZED (
  -- How a driver ended is the state of its job.
  SELECT *, CASE WHEN closed_by IS NOT NULL THEN open_end_ns END AS closed_ns,
    CASE WHEN closed_by IS NOT NULL THEN if(type = 'DRIVER_TASK', 'FINISHED', 'FAILED')
{_STATE_CASE}
      ELSE 'NIL' END AS state
  FROM closings
)
SELECT task_id, attempt_number, {_NAME} AS name,
  state, job_id, actor_id, type, func_or_class_name, parent_task_id, node_id, worker_id, pid AS worker_pid,
  CASE WHEN state <> 'FAILED' THEN NULL
    WHEN {_ENDED_UNKNOWN} THEN reported_error_type
    WHEN closed_by IN ('worker', 'job') THEN coalesce(reported_error_type, 'WORKER_DIED')
    WHEN closed_by = 'session' THEN coalesce(reported_error_type, 'NODE_DIED')
    ELSE reported_error_type END AS error_type,
  CASE WHEN state <> 'FAILED' THEN NULL WHEN reported_error_message IS NOT NULL THEN reported_error_message
    WHEN {_ENDED_UNKNOWN} THEN 'It is not known how this task ended: its driver did not export events.'
    WHEN closed_by = 'worker' THEN 'Worker running the task (' || worker_id || ') died with exit_type: ' ||
      CASE exit_type WHEN 'SYSTEM_ERROR' THEN '0' WHEN 'INTENDED_SYSTEM_EXIT' THEN '1' WHEN 'USER_ERROR' THEN '2'
        WHEN 'INTENDED_USER_EXIT' THEN '3' WHEN 'NODE_OUT_OF_MEMORY' THEN '4' ELSE coalesce(exit_type, '') END ||
      ' with error_message: ' || coalesce(exit_detail, '')
    WHEN closed_by = 'job' THEN 'Job finishes (' || job_id ||
      ') as driver exits. Marking all non-terminal tasks as failed.'
    WHEN closed_by = 'session' THEN {{closing_text}} END AS error_message,
  pending_args_avail_ns // 1000000 AS creation_time_ms, running_ns // 1000000 AS start_time_ms,
  coalesce(closed_ns, failed_ns, finished_ns) // 1000000 AS end_time_ms,
  language, required_resources, runtime_env, placement_group_id, is_debugger_paused, call_site, label_selector,
  fallback_strategy, stdout_file, stderr_file, stdout_start, stdout_end, stderr_start, stderr_end,
  defined, coalesce(closed_by = 'session' OR ({_ENDED_UNKNOWN}), false) AS closed_by_history, closed_ns,
  {", ".join(_STATE_COLUMNS)}{{as_of_columns}}
FROM finished WHERE {_IS_LISTED}"""

_AS_OF_VALUES = {
    "plain_name": f"nullif(plain_name, {_NAME})",
    "update_error_message": "if(state = 'FAILED', NULL, update_error_message)",
    "is_error_shown": "state = 'FAILED' AND update_error_message IS NOT NULL",
}
_AS_OF_LIST = "".join(f",\n  {_AS_OF_VALUES.get(column, column)} AS {column}" for column in AS_OF_COLUMNS)
_ORDER = "ORDER BY task_id, attempt_number DESC"

WORKERS_AS_OF = """
    SELECT * REPLACE (
      if(dead_ns <= {t} OR worker_type = 'DRIVER', job_id, NULL) AS job_id,
      if(dead_ns <= {t}, dead_ns, NULL) AS dead_ns, if(dead_ns <= {t}, end_ms, NULL) AS end_ms,
      if(dead_ns <= {t}, exit_type, NULL) AS exit_type, if(dead_ns <= {t}, exit_detail, NULL) AS exit_detail,
      if(dead_ns <= {t}, memory_used_bytes, NULL) AS memory_used_bytes)
    FROM {source} WHERE coalesce(alive_ns, start_ms * 1000000) <= {t}"""
DRIVER_JOBS_AS_OF = """
    SELECT * REPLACE (
      if(created_ns <= {t}, created_ns, NULL) AS created_ns, if(finished_ns <= {t}, finished_ns, NULL) AS finished_ns)
    FROM {source} WHERE least(created_ns, finished_ns, seen_ns) <= {t}"""

_PROFILE_SPANS = '[{"eventName": "VARCHAR", "startTime": "VARCHAR", "endTime": "VARCHAR", "extraData": "VARCHAR"}]'
_PROFILES_AS_OF = f"""
    SELECT * FROM (SELECT * REPLACE (
      to_json(list_filter(from_json(spans, '{_PROFILE_SPANS}'),
        lambda s: try_cast(s.endTime AS BIGINT) <= {{t}}))::VARCHAR AS spans)
    FROM {{source}}) WHERE spans <> '[]'"""


def served_tasks_sql(*, session_closed: bool, closing_ns: str, closing_text: str) -> str:
    """Return the query of `tasks` with hidden columns, based on the merged tables."""
    closed = "true" if session_closed else "false"
    values = {
        "session_closed": closed,
        "closing_ns": closing_ns,
        "closing_text": closing_text,
        "as_of_columns": _AS_OF_LIST,
    }
    return f"{_filled(_SERVED, known=_KNOWN_FROM_MERGED, **values)} {_ORDER}"


def tasks_as_of_sql(tasks: str, workers: str, driver_jobs: str, ns: int) -> str:
    """Return an SQL source with the rows of `tasks` as of a time.

    Its inputs are SQL sources: the rows of `tasks` with hidden columns, and the merged rows of workers and jobs.
    """
    ends = {
        "workers": as_of_sql(WORKERS_AS_OF, workers, ns),
        "driver_jobs": as_of_sql(DRIVER_JOBS_AS_OF, driver_jobs, ns),
    }
    known = _filled(_KNOWN_AS_OF, t=str(ns), **ends, rows=tasks)
    none = {"session_closed": "false", "closing_ns": "NULL::BIGINT", "closing_text": "NULL", "as_of_columns": ""}
    return f"({_filled(_SERVED, **none, known=known)})"


def profiles_as_of_sql(profiles: str, ns: int) -> str:
    """Return an SQL source with the profile events that had ended at a time."""
    return as_of_sql(_PROFILES_AS_OF, profiles, ns)


def as_of_sql(query: str, source: str, ns: int) -> str:
    return f"({_filled(query, t=str(ns), source=source)})"


def _filled(template: str, **values: str) -> str:
    for name, value in values.items():
        template = template.replace("{" + name + "}", value)
    return template
