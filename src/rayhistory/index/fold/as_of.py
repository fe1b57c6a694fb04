"""The small served tables of a session, and its gaps, as of a point in time.

Merged rows store a time with each value. Values that are later than the point in time are removed. The remaining rows
are the same as if only the earlier events had been folded, and the served tables are derived from them as usual. Tasks
and their profile events are not written here: `served_tasks.py` computes them while they are read.
"""

import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from rayhistory.events.dashboard_responses import add_dashboard_rows
from rayhistory.events.table_columns import TABLES, TABLES_BY_NAME, TASK_TABLES
from rayhistory.index.child_process import start_work
from rayhistory.index.cores import available_cores
from rayhistory.index.fold.build import write_small_tables
from rayhistory.index.fold.gap_rows import write_gaps
from rayhistory.index.fold.merge import create_sql, merge_sql, parquet
from rayhistory.index.fold.part_tables import count_tasks, unexecuted_sql
from rayhistory.index.fold.partial_files import PartialWriter
from rayhistory.index.fold.partitions import Partitions
from rayhistory.index.fold.response_files import LAST_RESPONSES_TABLE, RESPONSES_TABLE, list_responses, write_responses
from rayhistory.index.fold.served_tasks import DRIVER_JOBS_AS_OF, WORKERS_AS_OF, as_of_sql
from rayhistory.index.fold.table_files import Database, Files, open_database
from rayhistory.index.scratch import scratch_directory
from rayhistory.settings import Settings

EXIT_DAMAGED = 3
"""The exit code of the process if the merged tables cannot be read."""

_HAS_ENDED = "coalesce(s.end_ms * 1000000, s.seen_ns) <= {t}"
_JOB_END_COLUMNS = ("message", "error_type", "end_ms", "driver_exit_code", "job_id", "driver_node_id", "seen_ns")
_RECEIVED_NS = "try_cast(json_extract_string(s.stats, '$.creation_request_received_ns') AS BIGINT)"
_REQUESTED_NS = f"coalesce(s.created_ns, {_RECEIVED_NS}, s.seen_ns)"
_GROUP_STATE_COLUMNS = ("state", "bundles", "stats", "topology_strategy", "topology_assignments", "seen_ns")
_RESPONSE_PATHS = {"submission_jobs": "/api/jobs", "placement_groups": "/api/v0/placement_groups"}
"""For each of these tables, the dashboard path whose responses have the states of its rows.

The merged tables have only the latest states. The states as of a point in time are in the last response before it.
"""

_AS_OF_QUERIES = {
    "actor_definitions": "SELECT * FROM {source} WHERE defined_ns <= {t}",
    "actor_transitions": "SELECT * FROM {source} WHERE ns <= {t}",
    "driver_jobs": DRIVER_JOBS_AS_OF,
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
    "workers": WORKERS_AS_OF,
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
    """Input of the process: a line of JSON on its standard input."""

    settings: dict[str, Any]
    merged: dict[str, list[str]]
    """The files of the merged tables that `AS_OF_TABLES` names."""
    folder: str
    """The directory that the served tables are written to."""
    ns: int
    file_counts: dict[str, int]
    """How many files to write for each table of dashboard responses."""
    names: list[str]
    """Names of the tables to write."""
    tasks: str = ""
    """SQL that selects the tasks as of the time. The table of gaps needs it; empty to write the other tables."""


AS_OF_TABLES = [table.name for table in TABLES if table.name not in TASK_TABLES]
"""The merged tables from which the small served tables are made."""


def serve_as_of(job: AsOfJob) -> dict[str, list[str]]:
    """Write the served tables as of a point in time; return their files."""
    settings = Settings(**job.settings)
    threads = available_cores() if job.tasks else 1  # with small tables, threads would wait for each other
    with (
        scratch_directory(Path(settings.cache_dir) / "scratch") as scratch,
        open_database(scratch, settings.index_memory, threads) as database,
    ):
        files: Files = {}
        _write_small_tables(database, scratch, job, files)
        if "gaps" in job.names:
            _write_gaps(database, scratch, job, files)
        return {
            name: [shutil.move(path, f"{job.folder}/{name}.{number}.parquet") for number, path in enumerate(paths)]
            for name, paths in files.items()
            if name in job.names
        }


def _write_small_tables(database: Database, scratch: Path, job: AsOfJob, files: Files) -> None:
    list_responses(database, list(map(Path, job.merged[RESPONSES_TABLE])), job.ns)
    files |= write_responses(database, scratch, job.file_counts)
    _read_reported_states(database, scratch, files[LAST_RESPONSES_TABLE])
    for table in TABLES:
        if table.name not in (*TASK_TABLES, RESPONSES_TABLE):
            _create_as_of(database, table.name, job)
    files |= write_small_tables(database, scratch, None)


def _write_gaps(database: Database, scratch: Path, job: AsOfJob, files: Files) -> None:
    """Write the table of gaps. Some gaps count incomplete tasks, so all tasks are read."""
    database.execute(f"CREATE TABLE unexecuted_tasks AS {unexecuted_sql(job.tasks)}")
    write_gaps(database, scratch, None, files, count_tasks(database, job.tasks), unexecuted="unexecuted_tasks")


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


def _create_as_of(database: Database, name: str, job: AsOfJob) -> None:
    query = _AS_OF_QUERIES[name].replace("{reported}", f"reported_{name}")
    query = query.replace("{transitions}", parquet(job.merged["node_transitions"]))
    kind = "TABLE" if name == "gaps" else "VIEW"  # the gaps of the served tables are added to it
    database.execute(f"CREATE {kind} {name} AS FROM {as_of_sql(query, parquet(job.merged[name]), job.ns)}")


def main() -> None:
    """Run jobs from standard input, in a separate process like the fold. A failure ends the process."""
    start_work()
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
