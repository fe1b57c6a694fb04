"""A closed segment as the objects that it becomes: one JSON Lines file per category, or one JSON array.

The bytes depend on the segment alone, so that uploading it again after a crash writes the same objects again.
Large gzip members are copied as they are; small ones, of quiet times, are put together first, because many small
ones compress badly. Memory is bounded: by the largest member, and a buffer per open file. Only where the disk has no
room for the files are they made in memory, as large as the segment.
"""

import dataclasses
import io
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from rayhistory.collector.block import Block, Damage, Member, checked, members, pack, unpack
from rayhistory.collector.segment import Segment
from rayhistory.layout.keys import SNAPSHOTS

_OPEN_AT_ONCE = 64
_LARGE = 64 * 1024
_TOGETHER = 1 << 20
_OVER_ALL_FILES = 16 << 20


@dataclasses.dataclass
class Part:
    category: str
    path: Path
    lines: int = 0
    data: bytes | None = None
    """Where there is no file."""

    @property
    def content(self) -> Path | bytes:
        return self.path if self.data is None else self.data

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.data is None else len(self.data)


class _Writer:
    def __init__(self, part: Part, file: BinaryIO, stack: ExitStack, *, compressed: bool, together: int) -> None:
        self._part = part
        self._file = file
        self._compressed = compressed
        self._together = together
        self._small: list[bytes] = []
        self._size = self._lines = 0
        stack.callback(self._flush)

    def write(self, member: Member, data: bytes | None) -> None:
        """`data` is what is in the member, if somebody has unpacked it already."""
        self._part.lines += member.lines
        if self._compressed and member.raw >= _LARGE:
            self._flush()
            self._file.write(member.packed)
            return
        data = unpack(member) if data is None else data
        if not self._compressed:
            self._file.write(data)
            return
        self._small.append(data)
        self._size += len(data)
        self._lines += member.lines
        if self._size >= self._together:
            self._flush()

    def _flush(self) -> None:
        if self._small:
            self._file.write(pack(Block(self._part.category, self._lines, b"".join(self._small))))
            self._small, self._size, self._lines = [], 0, 0


class _ArrayWriter:
    """All that KubeRay's v1.6 reads."""

    def __init__(self, part: Part, file: BinaryIO, stack: ExitStack) -> None:
        self._part = part
        self._file = file
        self._before = b"["
        stack.callback(self._end)

    def write(self, member: Member, data: bytes | None) -> None:
        self._part.lines += member.lines
        for line in (unpack(member) if data is None else data).split(b"\n"):
            if line.strip():
                self._file.write(self._before + line)
                self._before = b",\n"

    def _end(self) -> None:
        self._file.write(b"[]" if self._before == b"[" else b"]")


def split(
    segment: Segment, directory: Path | None, *, compressed: bool, arrays: bool = False
) -> tuple[list[Part], Damage]:
    """Writes the parts into an existing directory, or into memory when there is none. Snapshots are never arrays."""
    damage = Damage()
    categories = sorted({member.category for member in members(segment.path, Damage(), data=False)})
    parts = [Part(category, (directory or Path()) / str(number)) for number, category in enumerate(categories)]
    together = min(_TOGETHER, _OVER_ALL_FILES // max(1, min(len(parts), _OPEN_AT_ONCE)))
    for first in range(0, len(parts), _OPEN_AT_ONCE):
        group = parts[first : first + _OPEN_AT_ONCE]
        with ExitStack() as stack:
            writers: dict[str, _Writer | _ArrayWriter] = {}
            for part in group:
                file = stack.enter_context(part.path.open("wb")) if directory else _in_memory(part, stack)
                if arrays and part.category != SNAPSHOTS:
                    writers[part.category] = _ArrayWriter(part, file, stack)
                else:
                    writers[part.category] = _Writer(part, file, stack, compressed=compressed, together=together)
            for member, data in _read(segment, damage if first == 0 else Damage()):
                if writer := writers.get(member.category):
                    writer.write(member, data)
    return [part for part in parts if part.lines], damage


def _in_memory(part: Part, stack: ExitStack) -> BinaryIO:
    file = io.BytesIO()

    def take() -> None:
        part.data = file.getvalue()

    stack.callback(take)
    return file


def _read(segment: Segment, damage: Damage) -> Iterator[tuple[Member, bytes | None]]:
    if segment.trusted:
        return ((member, None) for member in members(segment.path, damage))
    return checked(segment.path, damage)
