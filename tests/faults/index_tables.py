"""The tables of a stored index, found by its manifest with JSON and DuckDB. Shares no code with the project."""

import json
from pathlib import Path
from typing import Any

Manifest = dict[str, Any]


def latest_manifest(index: Path) -> Manifest | None:
    """Return the manifest of the highest generation."""
    generations = sorted(index.glob("manifest-*.json"), key=lambda path: int(path.stem.partition("-")[2]))
    return json.loads(generations[-1].read_bytes()) if generations else None


def table_source(index: Path, manifest: Manifest, table: str) -> str:
    """Return an SQL source with the valid rows of a table. A part names rows of others that it replaces."""
    parts = [part for part in manifest.get("parts", []) if table in part["files"]]
    if not parts:
        files = manifest.get("files", {}).get(table) or [[manifest["build"], 0]]
        return _read(index, table, files)
    lists = [file for part in parts for file in part["files"].get("merged.superseded", [])]
    if not lists:
        return _read(index, table, [file for part in parts for file in part["files"][table]])
    superseded = _read(index, "merged.superseded", lists)
    rows = " UNION ALL BY NAME ".join(
        f"SELECT '{part['name']}' AS part, * FROM {_read(index, table, part['files'][table])}" for part in parts
    )
    same = "r.part = s.part AND r.task_id = s.task_id AND r.attempt_number = s.attempt"
    return f"(SELECT r.* EXCLUDE (part) FROM ({rows}) r ANTI JOIN {superseded} s ON {same})"


def _read(index: Path, table: str, files: list[list[Any]]) -> str:
    paths = ", ".join(f"'{index}/{folder}/{table}.{number}.parquet'" for folder, number, *_ in files)
    return f"read_parquet([{paths}])"
