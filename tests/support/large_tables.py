"""A session whose tables are all long, made by repeating one row of each in the index of the recorded session."""

import json
from pathlib import Path

import duckdb

from rayhistory.index.query.query import KEY_COLUMNS
from rayhistory.sessions import Layout
from support.recorded_sample import REF, settings_for, store_indexed_sample
from support.stored_manifest import describe_file

_LAYOUT = Layout()
_TEXT = 300
"""Characters of the message of each row."""
_ID_LENGTHS = {"actor_id": 32, "node_id": 56, "worker_id": 56, "task_id": 48, "placement_group_id": 36, "event_id": 36}
_EMPTY_ROWS = {
    "cluster_events": {"source_type": "GCS", "message": "x" * _TEXT, "timestamp_s": 1_794_770_300},
    "platform_events": {"ns": 1_794_770_300_000_000_000, "body": json.dumps({"message": "x" * _TEXT})},
}
"""Rows of tables that the recorded session does not fill."""


def store_large_tables(directory: Path, rows: int, events: int) -> None:
    """Write the session to a store. Tables of events get `events` rows; others, except those of tasks, get `rows`."""
    store_indexed_sample(settings_for(directory))
    (path,) = (directory / "store" / _LAYOUT.index_prefix(REF)).glob("manifest-*.json")
    manifest = json.loads(path.read_bytes())
    for table in KEY_COLUMNS:
        if table not in ("tasks", "profile_events", "snapshots"):
            file = directory / "store" / _LAYOUT.index_file_key(REF, manifest["build"], table, 0)
            _repeat(file, table, events if table in _EMPTY_ROWS else rows)
            describe_file(manifest, table, file)
    path.write_bytes(json.dumps(manifest).encode())


def _repeat(file: Path, table: str, times: int) -> None:
    """Rewrite a table with its last row repeated under other keys."""
    repeated = file.with_suffix(".more")
    keys = KEY_COLUMNS[table]
    with duckdb.connect() as database:
        types = dict(row[:2] for row in database.execute(f"DESCRIBE SELECT * FROM read_parquet('{file}')").fetchall())
        database.execute(f"CREATE TABLE one AS SELECT * FROM read_parquet('{file}') ORDER BY ALL DESC LIMIT 1")
        if not database.execute("SELECT * FROM one").fetchall():
            row = _EMPTY_ROWS.get(table, {})
            values = {name: row.get(name, "x" if kind == "VARCHAR" else 1) for name, kind in types.items()}
            database.execute(f"INSERT INTO one VALUES ({', '.join('?' * len(values))})", list(values.values()))
        changed = keys[1] if table == "jobs" else "detail" if table == "gaps" else keys[0]
        number = f"lpad(i::VARCHAR, {_ID_LENGTHS.get(changed, 8)}, '0')"
        database.execute(
            f"COPY (SELECT * EXCLUDE (i) REPLACE ({number} AS {changed}) FROM one, range({times}) AS numbers(i) "
            f"ORDER BY {', '.join(keys)}) TO '{repeated}' (FORMAT parquet, ROW_GROUP_SIZE 20480)"
        )
    repeated.replace(file)
