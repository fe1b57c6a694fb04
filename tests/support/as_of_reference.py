"""The tasks of a session as of a point in time, derived from its merged rows: slow, and plain to read."""

from pathlib import Path
from typing import Any

import duckdb

from rayhistory.events.table_columns import TASK_STATES, TASK_TABLES, state_column
from rayhistory.index.fold.part_tables import PartFile, merged_rows_sql
from rayhistory.index.fold.served_tables import TASK_END_TABLES, merged_table_name, served_sql
from rayhistory.index.fold.served_tasks import AS_OF_COLUMNS, DRIVER_JOBS_AS_OF, WORKERS_AS_OF
from rayhistory.index.manifest import Manifest, Part
from support.folding import files_of

_STATES = [state_column(state) for state in TASK_STATES]
_RUN = ("actor_repr_name", "stdout_file", "stderr_file", "stdout_start", "stdout_end", "stderr_start", "stderr_end")
_TIMES = {
    **dict.fromkeys(("node_id", "worker_id", "worker_pid"), "placed_ns"),
    "process_pid": "process_ns",
    **dict.fromkeys(_RUN, "running_ns"),
    **{name: name for name in ("paused_ns", "resumed_ns", *_STATES)},
    **dict.fromkeys(("error_type", "error_message", "error_ns"), "error_ns"),
}
"""For each column of `task_updates` that a point in time may hide: the column with the time when it became known."""
_CUT = ", ".join(f"if({ns} <= {{t}}, {name}, NULL) AS {name}" for name, ns in _TIMES.items())
_SPANS = '[{"eventName": "VARCHAR", "startTime": "VARCHAR", "endTime": "VARCHAR", "extraData": "VARCHAR"}]'
_QUERIES = {
    "task_definitions": "SELECT * FROM {source} WHERE defined_ns <= {t}",
    "task_updates": f"SELECT * REPLACE ({_CUT}) FROM {{source}} WHERE least({', '.join(_STATES)}) <= {{t}}",
    "profile_events": f"""SELECT * REPLACE (to_json(list_filter(from_json(spans, '{_SPANS}'),
        lambda s: try_cast(s.endTime AS BIGINT) <= {{t}}))::VARCHAR AS spans) FROM {{source}}""",
    "workers": WORKERS_AS_OF,
    "driver_jobs": DRIVER_JOBS_AS_OF,
}


def tasks_as_of(directory: Path, manifest: Manifest, ns: int) -> list[tuple[Any, ...]]:
    with duckdb.connect() as database:
        for name, query in _QUERIES.items():
            source = _source(directory, manifest, name)
            database.execute(f"CREATE VIEW {name} AS {query.replace('{t}', str(ns)).replace('{source}', source)}")
        served = f"SELECT * EXCLUDE ({', '.join(AS_OF_COLUMNS)}) FROM ({served_sql(None)['tasks']})"
        return sorted(database.execute(served).fetchall(), key=repr)


def _source(directory: Path, manifest: Manifest, name: str) -> str:
    paths = files_of(directory, manifest, merged_table_name(name))
    if name in TASK_END_TABLES:
        return f"read_parquet({list(map(str, paths))})"
    assert name in TASK_TABLES
    files = [
        PartFile(part.name, str(path), is_superseded=part.superseded > 0)
        for part, path in zip(_parts(manifest, merged_table_name(name)), paths, strict=True)
    ]
    superseded = [] if name == "profile_events" else _superseded(directory, manifest)
    return merged_rows_sql(files, superseded)


def _parts(manifest: Manifest, table: str) -> list[Part]:
    return [part for part in manifest.parts for _ in part.files.get(table, ())]


def _superseded(directory: Path, manifest: Manifest) -> list[str]:
    has_lists = any("merged.superseded" in part.files for part in manifest.parts)
    return list(map(str, files_of(directory, manifest, "merged.superseded"))) if has_lists else []
