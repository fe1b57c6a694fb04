"""The session as it was at a moment: the same tables, from what was known by then.

Every merged row carries the times of what it says. Cutting it at a moment gives the row that a fold would have made of
the events up to then, and from there on everything is as always: `served_sql` does not know the difference.
"""

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from rayhistory.events.snapshots import add_rows
from rayhistory.events.tables import BY_NAME, BY_TASK, TABLES, TASK_STATES, state_column
from rayhistory.index.answers import LAST_ANSWERS, SNAPSHOTS, list_answers, write_answers
from rayhistory.index.build import Files, open_database, write_last, write_small, write_tasks
from rayhistory.index.child import end_with_parent
from rayhistory.index.cores import cores
from rayhistory.index.merge import create_sql, merge_sql, parquet
from rayhistory.index.partials import PartialWriter
from rayhistory.index.parts import Parts
from rayhistory.index.scratch import scratch_directory
from rayhistory.index.writing import Database
from rayhistory.settings import Settings

DAMAGED = 3
"""How the process ends when it cannot read the tables that it was given."""

_PLACED = "least(submitted_to_worker_ns, running_ns) <= {t}"
_RAN = "running_ns <= {t}"
_STATES = ", ".join(
    f"if({state_column(s)} <= {{t}}, {state_column(s)}, NULL) AS {state_column(s)}" for s in TASK_STATES
)
_REACHED = " OR ".join(f"{state_column(s)} <= {{t}}" for s in TASK_STATES)
_LOGS = ("stdout_file", "stderr_file", "stdout_start", "stdout_end", "stderr_start", "stderr_end")

_ENDED = "coalesce(s.end_ms * 1000000, s.seen_ns) <= {t}"
_OF_JOBS = ("message", "error_type", "end_ms", "driver_exit_code", "job_id", "driver_node_id", "seen_ns")
_RECEIVED = "try_cast(json_extract_string(s.stats, '$.creation_request_received_ns') AS BIGINT)"
_REQUESTED = f"coalesce(s.created_ns, {_RECEIVED}, s.seen_ns)"
_OF_GROUPS = ("state", "bundles", "stats", "topology_strategy", "topology_assignments", "seen_ns")
_TOLD = {"submission_jobs": "/api/jobs", "placement_groups": "/api/v0/placement_groups"}
"""Tables of which the dashboard's answers tell, and only the latest state is kept: that of a moment is in the last
answer before it."""

_SPANS = '[{"eventName": "VARCHAR", "startTime": "VARCHAR", "endTime": "VARCHAR", "extraData": "VARCHAR"}]'

_CUTS = {
    "task_definitions": "SELECT * FROM {source} WHERE defined_ns <= {t}",
    "task_updates": f"""
        SELECT * REPLACE (
          if({_PLACED}, node_id, NULL) AS node_id, if({_PLACED}, worker_id, NULL) AS worker_id,
          if({_RAN}, worker_pid, NULL) AS worker_pid, if({_RAN}, actor_repr_name, NULL) AS actor_repr_name,
          {", ".join(f"if({_RAN}, {name}, NULL) AS {name}" for name in _LOGS)},
          if(paused_ns <= {{t}}, paused_ns, NULL) AS paused_ns,
          if(resumed_ns <= {{t}}, resumed_ns, NULL) AS resumed_ns,
          if(error_ns <= {{t}}, error_type, NULL) AS error_type,
          if(error_ns <= {{t}}, error_message, NULL) AS error_message,
          if(error_ns <= {{t}}, error_ns, NULL) AS error_ns, {_STATES})
        FROM {{source}} WHERE {_REACHED}""",
    "profile_events": f"""
        SELECT * FROM (SELECT * REPLACE (
          to_json(list_filter(from_json(spans, '{_SPANS}'),
            s -> try_cast(s.endTime AS BIGINT) <= {{t}}))::VARCHAR AS spans)
        FROM {{source}}) WHERE spans <> '[]'""",
    "actor_definitions": "SELECT * FROM {source} WHERE defined_ns <= {t}",
    "actor_transitions": "SELECT * FROM {source} WHERE ns <= {t}",
    "driver_jobs": """
        SELECT * REPLACE (
          if(created_ns <= {t}, created_ns, NULL) AS created_ns,
          if(finished_ns <= {t}, finished_ns, NULL) AS finished_ns)
        FROM {source} WHERE least(created_ns, finished_ns, seen_ns) <= {t}""",
    "submission_jobs": f"""
        SELECT s.* REPLACE (
          CASE WHEN {_ENDED} THEN s.status WHEN t.status IS NOT NULL THEN t.status
            WHEN s.submission_id IN (SELECT submission_id FROM driver_jobs) THEN 'RUNNING' ELSE 'PENDING' END AS status,
          {", ".join(f"if({_ENDED}, s.{name}, t.{name}) AS {name}" for name in _OF_JOBS)})
        FROM {{source}} s LEFT JOIN {{told}} t USING (submission_id)
        WHERE coalesce(s.start_ms * 1000000, s.seen_ns) <= {{t}}""",
    "node_definitions": """
        SELECT * FROM {source} n
        WHERE start_ns <= {t} OR n.node_id IN (SELECT node_id FROM {transitions} WHERE ns <= {t})""",
    "node_transitions": "SELECT * FROM {source} WHERE ns <= {t}",
    "workers": """
        SELECT * REPLACE (
          if(dead_ns <= {t} OR worker_type = 'DRIVER', job_id, NULL) AS job_id,
          if(dead_ns <= {t}, dead_ns, NULL) AS dead_ns, if(dead_ns <= {t}, end_ms, NULL) AS end_ms,
          if(dead_ns <= {t}, exit_type, NULL) AS exit_type, if(dead_ns <= {t}, exit_detail, NULL) AS exit_detail)
        FROM {source} WHERE coalesce(alive_ns, start_ms * 1000000) <= {t}""",
    "placement_groups": f"""
        SELECT s.* REPLACE (
          {", ".join(f"if(s.seen_ns <= {{t}}, s.{name}, t.{name}) AS {name}" for name in _OF_GROUPS)})
        FROM {{source}} s LEFT JOIN {{told}} t USING (placement_group_id)
        WHERE t.placement_group_id IS NOT NULL OR {_REQUESTED} <= {{t}}""",
    "platform_events": "SELECT * FROM {source} WHERE ns <= {t}",
    "cluster_events": "SELECT * FROM {source} WHERE timestamp_s <= {t} // 1000000000",
    "gaps": "SELECT * FROM {source}",
    "life_signs": "SELECT * FROM {source}",
}


class AsOfJob(msgspec.Struct):
    settings: dict[str, Any]
    merged: dict[str, list[str]]
    """The files of the merged tables."""
    folder: str
    """Where the served ones go."""
    ns: int
    parts: dict[str, int]
    """How many files of each table there are to be."""


def serve_as_of(job: AsOfJob) -> dict[str, list[str]]:
    """The served tables as of a moment, from the merged ones."""
    settings = Settings(**job.settings)
    with scratch_directory(Path(settings.cache_dir) / "scratch") as scratch:
        database = open_database(scratch, settings.fold_memory, cores())
        files: Files = {}
        list_answers(database, list(map(Path, job.merged[SNAPSHOTS])), job.ns)
        files |= write_answers(database, scratch, job.parts)
        _read_told(database, scratch, files[LAST_ANSWERS])
        for table in TABLES:
            if table.name not in (*BY_TASK, SNAPSHOTS):
                _cut(database, table.name, job.merged[table.name], job)
        for part in range(len(job.merged[BY_TASK[0]])):
            for name in BY_TASK:
                _cut(database, name, [job.merged[name][part]], job)
            for name, path in write_tasks(database, scratch, None, part).items():
                files.setdefault(name, []).append(path)
        files |= write_small(database, scratch, None)
        write_last(database, scratch, None, files)
        return {
            name: [shutil.move(path, f"{job.folder}/{name}.{part}.parquet") for part, path in enumerate(paths)]
            for name, paths in files.items()
        }


def _read_told(database: Database, scratch: Path, last_answers: list[Path]) -> None:
    writer = PartialWriter(scratch, "told", Parts())
    for answer in _TOLD.values():
        last = database.execute(
            f"SELECT uri, ns, body FROM {parquet(last_answers)} "
            "WHERE uri = $1 OR starts_with(uri, $1 || '/') OR starts_with(uri, $1 || '?') ORDER BY ns DESC LIMIT 1",
            [answer],
        ).fetchall()
        for uri, ns, body in last:
            with suppress(msgspec.DecodeError, RecursionError):
                add_rows(writer.rows.add, uri, msgspec.json.decode(body), ns)
    writer.close()
    for table in map(BY_NAME.__getitem__, _TOLD):
        database.execute(create_sql(table, f"told_{table.name}"))
        for path in scratch.glob(f"{table.name}-*.parquet"):
            database.execute(f"INSERT INTO told_{table.name} {merge_sql(table, parquet([path]))}")


def _cut(database: Database, name: str, files: list[str], job: AsOfJob) -> None:
    query = _CUTS[name]
    for mark, value in {
        "{source}": parquet(files),
        "{told}": f"told_{name}",
        "{transitions}": parquet(job.merged["node_transitions"]),
        "{t}": str(job.ns),
    }.items():
        query = query.replace(mark, value)
    kind = "TABLE" if name == "gaps" else "VIEW"  # to the gaps, what the cut tables show is added
    database.execute(f"CREATE OR REPLACE {kind} {name} AS {query}")


def main() -> None:
    """As a process of its own, for the same reasons as the fold."""
    end_with_parent(os.getppid())
    try:
        files = serve_as_of(msgspec.json.decode(sys.stdin.buffer.read(), type=AsOfJob))
    except duckdb.OutOfMemoryException:
        raise
    except duckdb.Error as error:
        sys.stderr.write(str(error).partition("\n")[0] + "\n")
        sys.exit(DAMAGED)
    sys.stdout.buffer.write(msgspec.json.encode(files) + b"\n")


if __name__ == "__main__":
    main()
