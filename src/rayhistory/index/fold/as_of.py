"""The served tables of a session as of a point in time.

Merged rows carry the times of their values. Removing the values that are later than the point in time gives the rows
that a fold of the earlier events would have made. The served tables are then made from them as usual.
"""

import os
import shutil
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from rayhistory.events.dashboard_responses import add_dashboard_rows
from rayhistory.events.merged_tables import TABLES, TABLES_BY_NAME, TASK_STATES, TASK_TABLES, state_column
from rayhistory.index.child_process import end_with_parent
from rayhistory.index.cores import available_cores
from rayhistory.index.fold.build import open_database, write_small_tables
from rayhistory.index.fold.gap_rows import write_gaps
from rayhistory.index.fold.merge import create_sql, merge_sql, parquet
from rayhistory.index.fold.part_tables import PartFile, count_tasks, merged_rows_sql, unexecuted_sql
from rayhistory.index.fold.partial_files import PartialWriter
from rayhistory.index.fold.partitions import Partitions
from rayhistory.index.fold.response_files import LAST_RESPONSES_TABLE, RESPONSES_TABLE, list_responses, write_responses
from rayhistory.index.fold.served_tables import (
    SERVED_AS_MERGED,
    TASK_END_TABLES,
    served_sql,
    task_list_sql,
)
from rayhistory.index.fold.table_files import Database, Files, write_table
from rayhistory.index.scratch import scratch_directory
from rayhistory.settings import Settings

_FROM_TASKS_ALONE = {"tasks", "task_list", "profile_events"}
EXIT_DAMAGED = 3
"""The exit code of the process if the merged tables cannot be read."""

_HAS_RUN = "running_ns <= {t}"
_STATE_TIMES = ", ".join(
    f"if({state_column(s)} <= {{t}}, {state_column(s)}, NULL) AS {state_column(s)}" for s in TASK_STATES
)
_HAS_STATE = " OR ".join(f"{state_column(s)} <= {{t}}" for s in TASK_STATES)
_LOG_COLUMNS = ("stdout_file", "stderr_file", "stdout_start", "stdout_end", "stderr_start", "stderr_end")

_HAS_ENDED = "coalesce(s.end_ms * 1000000, s.seen_ns) <= {t}"
_JOB_END_COLUMNS = ("message", "error_type", "end_ms", "driver_exit_code", "job_id", "driver_node_id", "seen_ns")
_RECEIVED_NS = "try_cast(json_extract_string(s.stats, '$.creation_request_received_ns') AS BIGINT)"
_REQUESTED_NS = f"coalesce(s.created_ns, {_RECEIVED_NS}, s.seen_ns)"
_GROUP_STATE_COLUMNS = ("state", "bundles", "stats", "topology_strategy", "topology_assignments", "seen_ns")
_RESPONSE_PATHS = {"submission_jobs": "/api/jobs", "placement_groups": "/api/v0/placement_groups"}
"""Tables that keep only the latest state. Their earlier states are in the last dashboard response before the time."""

_SPANS_JSON = '[{"eventName": "VARCHAR", "startTime": "VARCHAR", "endTime": "VARCHAR", "extraData": "VARCHAR"}]'

_PROFILES = f"""
    SELECT * FROM (SELECT * REPLACE (
      to_json(list_filter(from_json(spans, '{_SPANS_JSON}'),
        s -> try_cast(s.endTime AS BIGINT) <= {{t}}))::VARCHAR AS spans)
    FROM {{rows}}) WHERE spans <> '[]'"""
_ORPHANED_PROFILES = _PROFILES.replace(
    "{rows}",
    """(SELECT * FROM {source} SEMI JOIN (
      SELECT task_id, attempt FROM task_updates ANTI JOIN task_definitions USING (task_id, attempt)
    ) USING (task_id, attempt))""",
)
"""Profiles of tasks without a definition, which is all that served tasks need: few, and decoding takes long."""

_AS_OF_QUERIES = {
    "task_definitions": "SELECT * FROM {source} WHERE defined_ns <= {t}",
    "task_updates": f"""
        SELECT * REPLACE (
          if(placed_ns <= {{t}}, node_id, NULL) AS node_id, if(placed_ns <= {{t}}, worker_id, NULL) AS worker_id,
          if(placed_ns <= {{t}}, worker_pid, NULL) AS worker_pid,
          if(process_ns <= {{t}}, process_pid, NULL) AS process_pid,
          if({_HAS_RUN}, actor_repr_name, NULL) AS actor_repr_name,
          {", ".join(f"if({_HAS_RUN}, {name}, NULL) AS {name}" for name in _LOG_COLUMNS)},
          if(paused_ns <= {{t}}, paused_ns, NULL) AS paused_ns,
          if(resumed_ns <= {{t}}, resumed_ns, NULL) AS resumed_ns,
          if(error_ns <= {{t}}, error_type, NULL) AS error_type,
          if(error_ns <= {{t}}, error_message, NULL) AS error_message,
          if(error_ns <= {{t}}, error_ns, NULL) AS error_ns, {_STATE_TIMES})
        FROM {{source}} WHERE {_HAS_STATE}""",
    "profile_events": _PROFILES.replace("{rows}", "{source}"),
    "actor_definitions": "SELECT * FROM {source} WHERE defined_ns <= {t}",
    "actor_transitions": "SELECT * FROM {source} WHERE ns <= {t}",
    "driver_jobs": """
        SELECT * REPLACE (
          if(created_ns <= {t}, created_ns, NULL) AS created_ns,
          if(finished_ns <= {t}, finished_ns, NULL) AS finished_ns)
        FROM {source} WHERE least(created_ns, finished_ns, seen_ns) <= {t}""",
    "submission_jobs": f"""
        SELECT s.* REPLACE (
          CASE WHEN {_HAS_ENDED} THEN s.status WHEN t.status IS NOT NULL THEN t.status
            WHEN s.submission_id IN (SELECT submission_id FROM driver_jobs) THEN 'RUNNING' ELSE 'PENDING' END AS status,
          {", ".join(f"if({_HAS_ENDED}, s.{name}, t.{name}) AS {name}" for name in _JOB_END_COLUMNS)})
        FROM {{source}} s LEFT JOIN {{reported}} t USING (submission_id)
        WHERE coalesce(s.start_ms * 1000000, s.seen_ns) <= {{t}}""",
    "node_definitions": """
        SELECT * FROM {source} n
        WHERE start_ns <= {t} OR n.node_id IN (SELECT node_id FROM {transitions} WHERE ns <= {t})""",
    "node_transitions": "SELECT * FROM {source} WHERE ns <= {t}",
    "workers": """
        SELECT * REPLACE (
          if(dead_ns <= {t} OR worker_type = 'DRIVER', job_id, NULL) AS job_id,
          if(dead_ns <= {t}, dead_ns, NULL) AS dead_ns, if(dead_ns <= {t}, end_ms, NULL) AS end_ms,
          if(dead_ns <= {t}, exit_type, NULL) AS exit_type, if(dead_ns <= {t}, exit_detail, NULL) AS exit_detail,
          if(dead_ns <= {t}, memory_used_bytes, NULL) AS memory_used_bytes)
        FROM {source} WHERE coalesce(alive_ns, start_ms * 1000000) <= {t}""",
    "placement_groups": f"""
        SELECT s.* REPLACE (
          {", ".join(f"if(s.seen_ns <= {{t}}, s.{name}, t.{name}) AS {name}" for name in _GROUP_STATE_COLUMNS)})
        FROM {{source}} s LEFT JOIN {{reported}} t USING (placement_group_id)
        WHERE t.placement_group_id IS NOT NULL OR {_REQUESTED_NS} <= {{t}}""",
    "platform_events": "SELECT * FROM {source} WHERE ns <= {t}",
    "cluster_events": "SELECT * FROM {source} WHERE timestamp_s <= {t} // 1000000000",
    "gaps": "SELECT * FROM {source}",
    "life_signs": "SELECT * FROM {source}",
}


class AsOfJob(msgspec.Struct):
    """A line of JSON on the process' standard input."""

    settings: dict[str, Any]
    merged: dict[str, list[str]]
    """The files of the merged tables that `merged_tables_for` names, and that are not in parts."""
    folder: str
    """The folder that the served tables are written to."""
    ns: int
    file_counts: dict[str, int]
    """The number of files that each table must have."""
    names: list[str]
    """The tables to write."""
    task_files: tuple[int, int]
    """The first file of the tables of tasks to write, and the end of the files."""
    parts: dict[str, list[PartFile]] = {}
    """The files of the merged tables of tasks."""
    superseded: list[str] = []
    """The lists of rows in them that are not valid."""

    def source(self, table: str, condition: str = "true") -> str:
        """Return an SQL source with the valid rows of a merged table."""
        if table not in self.parts:
            return parquet(self.merged[table])
        return merged_rows_sql(self.parts[table], [] if table == "profile_events" else self.superseded, condition)


def merged_tables_for(names: Iterable[str]) -> list[str]:
    """Return the merged tables that these served tables are made of. Pages without tasks need no tables of tasks."""
    wanted = set(names)
    if wanted == {"profile_events"}:
        return ["profile_events"]
    if wanted <= _FROM_TASKS_ALONE:
        return [*TASK_TABLES, *TASK_END_TABLES]
    with_tasks = bool(wanted & {*_FROM_TASKS_ALONE, "gaps"})
    return [table.name for table in TABLES if with_tasks or table.name not in TASK_TABLES]


def serve_as_of(job: AsOfJob) -> dict[str, list[str]]:
    """Write the served tables as of a point in time; return their files."""
    settings = Settings(**job.settings)
    # With small tables, threads would wait for each other.
    threads = available_cores() if TASK_TABLES[0] in job.parts else 1
    with (
        scratch_directory(Path(settings.cache_dir) / "scratch") as scratch,
        open_database(scratch, settings.index_memory, threads) as database,
    ):
        files: Files = {}
        if RESPONSES_TABLE in job.merged:
            _write_small_tables(database, scratch, job, files)
        else:
            for name in job.merged.keys() & set(TASK_END_TABLES):
                _create_as_of(database, name, job.source(name), job)
        if "task_list" in job.names:
            _write_task_list(database, scratch, job, files)
        if {"tasks", "profile_events", "gaps"} & set(job.names):
            _write_task_tables(database, scratch, job, files)
        return {
            name: [
                shutil.move(path, f"{job.folder}/{name}.{number}.parquet")
                for number, path in enumerate(paths, job.task_files[0])
            ]
            for name, paths in files.items()
            if name in job.names
        }


def _write_small_tables(database: Database, scratch: Path, job: AsOfJob, files: Files) -> None:
    list_responses(database, list(map(Path, job.merged[RESPONSES_TABLE])), job.ns)
    files |= write_responses(database, scratch, job.file_counts)
    _read_reported_states(database, scratch, files[LAST_RESPONSES_TABLE])
    for table in TABLES:
        if table.name not in (*TASK_TABLES, RESPONSES_TABLE):
            _create_as_of(database, table.name, job.source(table.name), job)
    files |= write_small_tables(database, scratch, None)


def _write_task_list(database: Database, scratch: Path, job: AsOfJob, files: Files) -> None:
    """Write the list of tasks. It has few columns, so that all partitions are joined at once."""
    _create_task_views(database, job, "true")
    tasks = f"(SELECT *, 0 AS position FROM ({served_sql(None)['tasks']}))"  # no row is replaced by another
    files["task_list"] = [write_table(database, scratch, "task_list", f"({task_list_sql(tasks)})")]


def _write_task_tables(database: Database, scratch: Path, job: AsOfJob, files: Files) -> None:
    """Write the other tables of tasks, and the gaps that count incomplete tasks."""
    tasks = served_sql(None)["tasks"]
    profiles = f"SELECT * FROM profile_events ORDER BY {SERVED_AS_MERGED['profile_events']}"
    partitions = Partitions(job.file_counts["tasks"])
    for partition in range(*job.task_files):
        condition = partitions.condition(partition)
        if "profile_events" in job.names:
            _create_as_of(database, "profile_events", job.source("profile_events", condition), job)
            path = write_table(database, scratch, "profile_events", f"({profiles})", partition)
            files.setdefault("profile_events", []).append(path)
        if {"tasks", "gaps"} & set(job.names):
            _create_task_views(database, job, condition)
            files.setdefault("tasks", []).append(write_table(database, scratch, "tasks", f"({tasks})", partition))
    if "gaps" in job.names:
        rows = parquet(files["tasks"])
        counts, unexecuted = count_tasks(database, rows), f"({unexecuted_sql(rows)})"
        write_gaps(database, scratch, None, files, counts, unexecuted=unexecuted)


def _create_task_views(database: Database, job: AsOfJob, condition: str) -> None:
    for name in TASK_TABLES:
        query = _ORPHANED_PROFILES if name == "profile_events" else ""
        _create_as_of(database, name, job.source(name, condition), job, query)


def _read_reported_states(database: Database, scratch: Path, last_responses: list[Path]) -> None:
    """Create the tables `reported_…` from the last dashboard responses."""
    writer = PartialWriter(scratch, "reported", Partitions())
    for response_path in _RESPONSE_PATHS.values():
        last = database.execute(
            f"SELECT uri, ns, body FROM {parquet(last_responses)} "
            "WHERE uri = $1 OR starts_with(uri, $1 || '/') OR starts_with(uri, $1 || '?') ORDER BY ns DESC LIMIT 1",
            [response_path],
        ).fetchall()
        for uri, ns, body in last:
            with suppress(msgspec.DecodeError, RecursionError):
                add_dashboard_rows(writer.rows, uri, msgspec.json.decode(body), ns)
    writer.close()
    for table in map(TABLES_BY_NAME.__getitem__, _RESPONSE_PATHS):
        database.execute(create_sql(table, f"reported_{table.name}"))
        for path in scratch.glob(f"{table.name}-*.parquet"):
            database.execute(f"INSERT INTO reported_{table.name} {merge_sql(table, parquet([path]))}")


def _create_as_of(database: Database, name: str, source: str, job: AsOfJob, query: str = "") -> None:
    query = query or _AS_OF_QUERIES[name]
    for placeholder, value in {
        "{source}": source,
        "{reported}": f"reported_{name}",
        "{transitions}": parquet(job.merged.get("node_transitions", [])),
        "{t}": str(job.ns),
    }.items():
        query = query.replace(placeholder, value)
    kind = "TABLE" if name == "gaps" else "VIEW"  # the gaps of the served tables are added to it
    database.execute(f"CREATE OR REPLACE {kind} {name} AS {query}")


def main() -> None:
    """Run jobs in a process of their own, for the same reasons as the fold. A failure ends the process."""
    end_with_parent(os.getppid())
    for line in sys.stdin.buffer:
        try:
            files = serve_as_of(msgspec.json.decode(line, type=AsOfJob))
        except duckdb.OutOfMemoryException:
            raise
        except duckdb.Error as error:
            sys.stderr.write(str(error).partition("\n")[0] + "\n")
            sys.exit(EXIT_DAMAGED)
        sys.stdout.buffer.write(msgspec.json.encode(files) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
