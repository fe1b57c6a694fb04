"""Literals of SQL."""

from pathlib import Path


def quoted(value: str | Path) -> str:
    """Return a string literal. Paths may have apostrophes, too."""
    return "'" + str(value).replace("'", "''") + "'"
