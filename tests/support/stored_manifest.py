"""Change the manifest of a stored index, for tests that replace its files."""

from pathlib import Path
from typing import Any

from rayhistory.index.index_objects import file_sha256


def describe_file(manifest: dict[str, Any], table: str, path: Path) -> None:
    """Set size and digest of the only file of a table."""
    (file,) = manifest["files"].get(table) or [file for part in manifest["parts"] for file in part["files"][table]]
    file[2], file[4] = path.stat().st_size, file_sha256(path)
