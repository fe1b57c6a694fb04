"""Change the manifest of a stored index, for tests that replace its files."""

from typing import Any


def set_file_size(manifest: dict[str, Any], table: str, size: int) -> None:
    """Set the size of the only file of a table."""
    (file,) = manifest["files"].get(table) or [file for part in manifest["parts"] for file in part["files"][table]]
    file[2] = size
