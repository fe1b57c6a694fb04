"""The second half of the fold, in DuckDB: rows merged, what was left open closed, tables written."""

from collections.abc import Callable
from pathlib import Path

import duckdb
import msgspec

from rayhistory.events.tables import TABLES, Table
from rayhistory.index.derive import GAP_QUERIES, SERVED_AS_MERGED, merged_file, served_sql, task_list_sql
from rayhistory.index.manifest import Closing, Counts
from rayhistory.index.merge import create_sql, merge_sql
from rayhistory.layout.records import NodeSeal
from rayhistory.settings import Settings

_ROWS_PER_PART = 1_000_000
_WRITE = "FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2, ROW_GROUP_SIZE 20480"

Database = duckdb.DuckDBPyConnection
Report = Callable[[float, str], None]


class Built(msgspec.Struct):
    """The tables as files, and what the manifest says of them."""

    files: dict[str, Path]
    counts: Counts
    first_ns: int | None
    last_ns: int | None
    ray_version: str | None


def build(settings: Settings, scratch: Path, closing: Closing | None, seals: list[NodeSeal], report: Report) -> Built:
    """Tables from the partial files in the scratch directory; those of an earlier generation are among them."""
    database = open_database(settings, scratch)
    for table in TABLES:
        merge_table(database, table, scratch)
    report(0.85, "closing what was left open")
    if closing:
        closing = Closing(_last_sign_of_life(database, closing.ns), closing.clean)
    files = {
        merged_file(table.name): write(database, scratch, merged_file(table.name), table.name)
        for table in TABLES
        if table.name not in SERVED_AS_MERGED
    }
    _count_what_collectors_lost(database, seals)
    files |= write_served(database, scratch, closing)
    return _facts(database, files)


def open_database(settings: Settings, scratch: Path) -> Database:
    database = duckdb.connect(str(scratch / "merge.duckdb"))
    for option, value in {
        "memory_limit": f"{int(settings.fold_memory * 0.7) // 2**20}MiB",
        "temp_directory": str(scratch),
        "preserve_insertion_order": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }.items():
        database.execute(f"SET {option} = '{value}'")
    return database


def merge_table(database: Database, table: Table, scratch: Path) -> None:
    """One row per key, part by part when there are many: the merge of texts does not spill well."""
    database.execute(create_sql(table))
    if not any(scratch.glob(f"{table.name}-*.parquet")):
        return
    partials = f"read_parquet('{scratch}/{table.name}-*.parquet')"
    parts = number(database, f"SELECT count(*) FROM {partials}") // _ROWS_PER_PART + 1
    for part in range(parts):
        where = f"hash({table.keys[0]}) % {parts} = {part}" if parts > 1 else ""
        database.execute(f"INSERT INTO {table.name} {merge_sql(table, partials, where)}")


def write_served(database: Database, scratch: Path, closing: Closing | None) -> dict[str, Path]:
    """The tables that are served; the gaps last, because what the others show to be missing is counted there."""
    served = served_sql(closing)
    served |= {name: f"SELECT * FROM {name} ORDER BY {order}" for name, order in SERVED_AS_MERGED.items()}
    files = {name: write(database, scratch, name, f"({sql})") for name, sql in served.items() if name != "gaps"}
    files["task_list"] = write(database, scratch, "task_list", f"({task_list_sql(_file(files['tasks']))})")
    for kind, (table, condition) in GAP_QUERIES.items():
        count = number(database, f"SELECT count(*) FROM {_file(files[table])} WHERE {condition}")
        if count:
            database.execute("INSERT INTO gaps VALUES ('', ?, '', ?)", [kind, count])
    files["gaps"] = write(database, scratch, "gaps", f"({served['gaps']})")
    return files


def write(database: Database, scratch: Path, name: str, source: str) -> Path:
    path = scratch / f"written-{name}.parquet"
    database.execute(f"COPY {source} TO '{path}' ({_WRITE})")
    return path


def _file(path: Path) -> str:
    return f"read_parquet('{path}')"


def number(database: Database, query: str) -> int:
    return int(database.execute(query).fetchall()[0][0])


def _last_sign_of_life(database: Database, ns: int) -> int:
    return max(ns, number(database, "SELECT coalesce(max(last_ns), 0) FROM life_signs"))


def _count_what_collectors_lost(database: Database, seals: list[NodeSeal]) -> None:
    for seal in seals:
        for kind, count in (("event set aside by the collector", seal.set_aside), ("event dropped", seal.dropped)):
            if count:
                database.execute("INSERT INTO gaps VALUES (?, ?, '', ?)", [f"node {seal.node_id}", kind, count])


def _facts(database: Database, files: dict[str, Path]) -> Built:
    def count(table: str, condition: str = "true") -> int:
        return number(database, f"SELECT count(*) FROM {_file(files[table])} WHERE {condition}")

    jobs = database.execute(f"SELECT status, count(*) FROM {_file(files['jobs'])} GROUP BY 1").fetchall()
    first, last = database.execute("SELECT min(first_ns), max(last_ns) FROM life_signs").fetchall()[0]
    versions = database.execute(
        "SELECT json_extract_string(body, '$.ray_version') FROM snapshots WHERE uri = '/api/version' "
        "UNION ALL SELECT json_extract_string(body, '$.data.rayVersion') FROM snapshots "
        "WHERE uri = '/api/v0/cluster_metadata'"
    ).fetchall()
    counts = Counts(
        jobs=dict(jobs),
        tasks=count("tasks", "type <> 'DRIVER_TASK'"),
        failed_tasks=count("tasks", "state = 'FAILED' AND type <> 'DRIVER_TASK'"),
        actors=count("actors"),
        nodes=count("nodes"),
        gaps=number(database, "SELECT coalesce(sum(count), 0) FROM gaps WHERE source <> ''"),
    )
    return Built(files, counts, first, last, next((row[0] for row in versions if row[0]), None))
