"""The rows of the table of gaps: losses that collectors counted, and values that other tables lack."""

from pathlib import Path

from rayhistory.gaps import GapCode
from rayhistory.index.fold.merge import parquet
from rayhistory.index.fold.part_tables import open_gaps
from rayhistory.index.fold.served_tables import GAP_CONDITIONS, served_queries
from rayhistory.index.fold.table_files import Database, Files, scalar, write_table
from rayhistory.sessions.records import Closing, NodeSeal


def write_gaps(
    database: Database,
    scratch: Path,
    closing: Closing | None,
    files: Files,
    task_counts: dict[str, int],
    *,
    unexecuted: str,
) -> None:
    """Write the gaps that are counted in the other served tables."""
    counts = open_gaps(task_counts)
    sources = {name: parquet(paths) for name, paths in files.items()} | {"unexecuted": unexecuted}
    for code, (table, condition) in GAP_CONDITIONS.items():
        if table != "tasks":
            query = f"SELECT count(*) FROM {sources[table]} {table} WHERE {condition.format(**sources)}"
            counts[code] = scalar(database, query)
    for code, count in counts.items():
        if count:
            _add_gap(database, code, count)
    files["gaps"] = [write_table(database, scratch, "gaps", f"({served_queries(closing)['gaps']})")]


def _add_gap(database: Database, code: GapCode, count: int, *, source: str = "", detail: str = "") -> None:
    row = {"source": source, "kind": code.value, "detail": detail, "count": count}
    values = ", ".join(f"${name}" for name in row)
    database.execute(f"INSERT INTO gaps ({', '.join(row)}) VALUES ({values})", row)


def add_seal_gaps(database: Database, seals: list[NodeSeal]) -> None:
    """Add the losses that the nodes' collectors counted."""
    for seal in seals:
        node = f"node {seal.node_id}"
        if seal.set_aside:
            _add_gap(database, GapCode.EVENTS_QUARANTINED, seal.set_aside, source=node)
        if seal.dropped:
            _add_gap(database, GapCode.EVENTS_DROPPED, seal.dropped, source=node)
        if seal.late:
            _add_gap(database, GapCode.EVENTS_LATE, seal.late, detail=node)


def add_empty_table_gaps(database: Database, files: Files, task_counts: dict[str, int]) -> None:
    """Add a gap for each empty table that should have rows: a cluster has nodes, and a session with jobs has tasks."""
    counts = {
        name: scalar(database, f"SELECT count(*) FROM {parquet(files[name])}") for name in ("nodes", "jobs", "actors")
    } | {"tasks": task_counts["rows"]}
    if counts["nodes"]:
        del counts["actors"]
        if not (counts["jobs"] or counts["tasks"]):
            return  # no job ran
    for name in (name for name, count in counts.items() if not count):
        _add_gap(database, GapCode.TABLE_EMPTY, 1, detail=name)


def delete_gaps(database: Database, sources: set[str]) -> None:
    """Delete the gaps of sources that no longer exist."""
    source = r"regexp_replace(source, '@\d+$', '')"  # without the offset from which the source was read
    database.execute(f"DELETE FROM gaps WHERE {source} IN (SELECT unnest(?::VARCHAR[]))", [list(sources)])
