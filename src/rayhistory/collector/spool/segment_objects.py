"""Split a closed segment into objects for the store: one JSON Lines file or one JSON array per category.

The bytes depend only on the segment, so that an upload repeated after a crash writes the same objects. Large gzip
members are copied unchanged. Small ones are merged first, because many small members compress badly. Memory is bounded
by the largest member and a buffer per open file. If the disk is full, objects are made in memory, and can then be as
large as the segment.
"""

import dataclasses
import io
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from rayhistory.collector.spool.block import (
    Block,
    Damage,
    Member,
    compress_block,
    decompress_member,
    read_members,
    read_verified_members,
)
from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.collector.spool.segment import Segment
from rayhistory.sessions.keys import DASHBOARD_RESPONSES

_MAX_OPEN_FILES = 64
_COPY_UNCHANGED_BYTES = 64 * 1024
_MERGE_BUFFER_BYTES = 1 << 20
_ALL_MERGE_BUFFERS_BYTES = 16 << 20


@dataclasses.dataclass
class SegmentObject:
    """The lines of one category in a segment, which become one object."""

    category: str
    directory: PrivateDirectory | None
    """Directory of the object's file; None if the object is in memory."""
    name: str
    lines: int = 0
    data: bytes = b""
    """Content of the object, if it is in memory."""

    @property
    def path(self) -> Path:
        return self.directory.path / self.name if self.directory else Path(self.name)

    def open(self) -> BinaryIO:
        return self.directory.open(self.name) if self.directory else io.BytesIO(self.data)

    @property
    def size(self) -> int:
        return self.directory.status(self.name).st_size if self.directory else len(self.data)


class _LinesWriter:
    """Writes an object as JSON Lines, compressed or not."""

    def __init__(
        self, target: SegmentObject, file: BinaryIO, stack: ExitStack, *, compressed: bool, buffer: int
    ) -> None:
        self._object = target
        self._file = file
        self._compressed = compressed
        self._buffer_size = buffer
        self._buffered: list[bytes] = []
        self._buffered_bytes = self._buffered_lines = 0
        stack.callback(self._flush)

    def write(self, member: Member, data: bytes | None) -> None:
        """Write a member; `data` is its decompressed content, if the caller has it."""
        self._object.lines += member.lines
        if self._compressed and member.raw_size >= _COPY_UNCHANGED_BYTES:
            self._flush()
            self._file.write(member.compressed)
            return
        data = decompress_member(member) if data is None else data
        if not self._compressed:
            self._file.write(data)
            return
        self._buffered.append(data)
        self._buffered_bytes += len(data)
        self._buffered_lines += member.lines
        if self._buffered_bytes >= self._buffer_size:
            self._flush()

    def _flush(self) -> None:
        if self._buffered:
            block = Block(self._object.category, self._buffered_lines, b"".join(self._buffered))
            self._file.write(compress_block(block))
            self._buffered, self._buffered_bytes, self._buffered_lines = [], 0, 0


class _ArrayWriter:
    """Writes an object as one JSON array, the only form that KubeRay v1.6 reads."""

    def __init__(self, target: SegmentObject, file: BinaryIO, stack: ExitStack) -> None:
        self._object = target
        self._file = file
        self._separator = b"["
        stack.callback(self._end)

    def write(self, member: Member, data: bytes | None) -> None:
        self._object.lines += member.lines
        for line in (decompress_member(member) if data is None else data).split(b"\n"):
            if line.strip():
                self._file.write(self._separator + line)
                self._separator = b",\n"

    def _end(self) -> None:
        self._file.write(b"[]" if self._separator == b"[" else b"]")


def split_segment(
    segment: Segment, directory: PrivateDirectory | None, *, compressed: bool, arrays: bool = False
) -> tuple[list[SegmentObject], Damage]:
    """Write the objects of a segment into an existing directory, or into memory if `directory` is None.

    Dashboard responses are never written as arrays, because KubeRay does not read them.
    """
    damage = Damage()
    with segment.open() as file:
        categories = sorted({member.category for member in read_members(file, Damage(), with_data=False)})
    objects = [SegmentObject(category, directory, str(number)) for number, category in enumerate(categories)]
    buffer = min(_MERGE_BUFFER_BYTES, _ALL_MERGE_BUFFERS_BYTES // max(1, min(len(objects), _MAX_OPEN_FILES)))
    for first in range(0, len(objects), _MAX_OPEN_FILES):
        group = objects[first : first + _MAX_OPEN_FILES]
        with ExitStack() as stack:
            writers: dict[str, _LinesWriter | _ArrayWriter] = {}
            for each in group:
                file = _open_file(directory, each, stack) if directory else _open_in_memory(each, stack)
                if arrays and each.category != DASHBOARD_RESPONSES:
                    writers[each.category] = _ArrayWriter(each, file, stack)
                else:
                    writers[each.category] = _LinesWriter(each, file, stack, compressed=compressed, buffer=buffer)
            source = stack.enter_context(segment.open())
            for member, data in _read(segment, source, damage if first == 0 else Damage()):
                if writer := writers.get(member.category):
                    writer.write(member, data)
    return [each for each in objects if each.lines], damage


def _open_file(directory: PrivateDirectory, target: SegmentObject, stack: ExitStack) -> BinaryIO:
    return stack.enter_context(open(directory.create(target.name), "wb"))  # noqa: PTH123 - there is only the descriptor


def _open_in_memory(target: SegmentObject, stack: ExitStack) -> BinaryIO:
    file = io.BytesIO()

    def set_data() -> None:
        target.data = file.getvalue()

    stack.callback(set_data)
    return file


def _read(segment: Segment, file: BinaryIO, damage: Damage) -> Iterator[tuple[Member, bytes | None]]:
    if segment.trusted:
        return ((member, None) for member in read_members(file, damage))
    return read_verified_members(file, damage)
