"""Read the segments of a spool."""

from collections.abc import Iterator
from pathlib import Path

from rayhistory.collector.spool.block import READ_BYTES, Damage, read_verified_members


def read_lines(path: Path, damage: Damage) -> Iterator[tuple[str, bytes]]:
    """Yield the category and the line, with its newline, of all lines in a segment."""
    with path.open("rb", READ_BYTES) as file:
        for member, data in read_verified_members(file, damage):
            for line in data.split(b"\n")[:-1]:
                yield member.category, line + b"\n"
