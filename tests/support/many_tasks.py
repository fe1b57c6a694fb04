"""A session with many tasks, made by repeating one task of the recorded session in the tables of its index."""

import json
from pathlib import Path

import duckdb

from rayhistory.sessions import Layout
from support.recorded_sample import REF, settings_for, store_indexed_sample
from support.stored_manifest import describe_file

TASK = "c2668a65bda616c1ffffffffffffffffffffffff01000000"
SMALL_JOB = "02000000"
_LAYOUT = Layout()
_SORT_ORDERS = {"tasks": "task_id", "task_list": "state, start_time_ms, task_id", "profile_events": "task_id, attempt"}


def store_many_tasks(directory: Path, tasks: int, *, small_job: int = 0) -> None:
    """Write the session to the store of the directory; `small_job` of its tasks belong to another job."""
    store_indexed_sample(settings_for(directory))
    (path,) = (directory / "store" / _LAYOUT.index_prefix(REF)).glob("manifest-*.json")
    manifest = json.loads(path.read_bytes())
    for table, order in _SORT_ORDERS.items():
        file = directory / "store" / _LAYOUT.index_file_key(REF, manifest["build"], table, 0)
        _repeat(file, order, tasks, small_job)
        describe_file(manifest, table, file)
    manifest["counts"]["tasks"] = tasks
    path.write_bytes(json.dumps(manifest).encode())


def _repeat(file: Path, order: str, times: int, small_job: int) -> None:
    """Rewrite a table with the rows of the one task repeated."""
    repeated = file.with_suffix(".more")
    job = f"CASE WHEN i < {small_job} THEN '{SMALL_JOB}' ELSE '01000000' END"
    ids = f"left(md5(i::VARCHAR), 16) || repeat('f', 24) || {job}"
    with duckdb.connect() as database:
        database.execute(
            f"COPY (SELECT * EXCLUDE (i) REPLACE ({ids} AS task_id, {job} AS job_id) "
            f"FROM read_parquet('{file}'), range({times}) AS numbers(i) WHERE task_id = '{TASK}' ORDER BY {order}) "
            f"TO '{repeated}' (FORMAT parquet, ROW_GROUP_SIZE 10240)"
        )
    repeated.replace(file)
