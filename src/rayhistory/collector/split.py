"""A closed segment as the objects that it becomes: one JSON Lines file per category.

The bytes depend on the segment alone, so that uploading it again after a crash writes the same objects again.
Memory is bounded: by the buffers of a few dozen open files, and by the longest line.
"""

import dataclasses
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, cast

from isal import igzip

from rayhistory.collector.segment import Damage, records

_OPEN_AT_ONCE = 64
_BUFFER = 128 * 1024
_LEVEL = 1


@dataclasses.dataclass
class Part:
    category: str
    path: Path
    lines: int = 0


class _Writer:
    """Collects lines, because compressing them one by one is slow."""

    def __init__(self, part: Part, stack: ExitStack, *, compressed: bool) -> None:
        self._part = part
        raw = stack.enter_context(part.path.open("wb"))
        self._file: BinaryIO = raw
        if compressed:
            gzip = igzip.IGzipFile(  # type: ignore[no-untyped-call]
                filename="", mode="wb", compresslevel=_LEVEL, fileobj=raw, mtime=0
            )
            self._file = cast(BinaryIO, stack.enter_context(gzip))
        stack.callback(self._flush)
        self._lines: list[bytes] = []
        self._size = 0

    def write(self, line: bytes) -> None:
        self._lines.append(line)
        self._size += len(line)
        self._part.lines += 1
        if self._size >= _BUFFER:
            self._flush()

    def _flush(self) -> None:
        self._file.write(b"".join(self._lines))
        self._lines, self._size = [], 0


def split(segment: Path, directory: Path, *, compressed: bool) -> tuple[list[Part], Damage]:
    """Writes the parts into an existing directory."""
    damage = Damage()
    categories = sorted({category for category, _ in records(segment, damage)})
    parts = [Part(category, directory / str(number)) for number, category in enumerate(categories)]
    for first in range(0, len(parts), _OPEN_AT_ONCE):
        with ExitStack() as stack:
            writers = {
                part.category: _Writer(part, stack, compressed=compressed)
                for part in parts[first : first + _OPEN_AT_ONCE]
            }
            for category, line in records(segment, Damage()):
                if category in writers:
                    writers[category].write(line)
    return parts, damage
