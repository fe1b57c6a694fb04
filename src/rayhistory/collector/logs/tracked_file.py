"""Tracked log files, and checks that a file still has the content that was uploaded.

Inodes are reused, so a file is identified by its inode and by its first and last uploaded bytes.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from isal.isal_zlib import crc32

from rayhistory.collector.logs.walk import FileEntry, open_inside
from rayhistory.packs.pack_format import Stream

CHUNK_BYTES = 512 << 10
_HEAD_BYTES = 256
_TAIL_BYTES = 64
_MAX_WHOLE_CRC_BYTES = 64 << 20
_STATE_DUMP = re.compile(r"(?:.*/)?debug_state\w*\.txt\Z")
"""A pattern for files that Ray rewrites every few seconds. Only their recent content is useful."""


class TrackedFile(msgspec.Struct):
    """A stream, and the last known status of its file."""

    stream: Stream
    size: int = 0
    max_size: int = 0
    """The largest size of the file so far."""
    modified_ns: int = 0
    shipped_modified_ns: int = -1
    """Modification time up to which all content has been uploaded."""
    last_round: int = 0
    """Number of the last scan that found the file."""
    first_round: int = 0
    """Number of the first scan that found the file; 0 if the store already had its stream."""
    shipped_at: float = float("-inf")
    replaced: bool = False
    """True if the file was found to have different content. The next scan handles this."""

    @property
    def key(self) -> tuple[int, int]:
        return self.stream.device, self.stream.inode

    @property
    def is_state_dump(self) -> bool:
        return _STATE_DUMP.match(self.stream.name) is not None

    @property
    def unshipped_bytes(self) -> int:
        return max(0, self.size - self.stream.size)

    def entry(self) -> FileEntry:
        return FileEntry(self.stream.name, self.key, self.size, self.modified_ns)

    def update(self, entry: FileEntry, scan_round: int) -> None:
        self.last_round, self.size, self.modified_ns = scan_round, entry.size, entry.modified_ns
        self.max_size = max(self.max_size, self.size)


@contextmanager
def open_if_unmoved(root: Path | None, name: str, key: tuple[int, int]) -> Iterator[int | None]:
    """Yield a descriptor of the file, or None if the name now belongs to another inode. The next scan handles that."""
    if root is None:
        yield None
        return
    try:
        descriptor = open_inside(str(root), name)
    except OSError:
        yield None
        return
    try:
        status = os.fstat(descriptor)
        yield descriptor if (status.st_dev, status.st_ino) == key else None
    finally:
        os.close(descriptor)


def is_unmoved(root: Path | None, entry: FileEntry) -> bool:
    try:
        status = os.stat(f"{root}/{entry.name}", follow_symlinks=False)  # noqa: PTH116 - as in `walk`
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == entry.key


def contains_stream(root: Path | None, entry: FileEntry, stream: Stream, *, compare_all: bool = False) -> bool | None:
    """Return whether a file starts with all uploaded bytes of the stream; None if the file was just renamed."""
    if entry.size < stream.size:
        return False
    if stream.size == 0:
        return not compare_all
    with open_if_unmoved(root, entry.name, entry.key) as descriptor:
        if descriptor is None:
            return None
        if not continues_stream(descriptor, stream):
            return False
        return not compare_all or stream.size > _MAX_WHOLE_CRC_BYTES or _crc(descriptor, stream.size) == stream.crc


def continues_stream(descriptor: int, stream: Stream) -> bool:
    """Check that the first bytes, and the last bytes before the uploaded size, are unchanged."""
    try:
        head = os.pread(descriptor, stream.head_size, 0)
        if len(head) != stream.head_size or crc32(head) != stream.head_crc:
            return False
        tail = os.pread(descriptor, min(_TAIL_BYTES, stream.size), max(0, stream.size - _TAIL_BYTES))
    except OSError:
        return False
    return crc32(tail) == stream.tail_crc


class StreamAppender:
    """Append chunks to a stream's record: its size and the CRCs that identify its file."""

    def __init__(self, stream: Stream, descriptor: int) -> None:
        self._stream = stream
        self._head = os.pread(descriptor, stream.head_size, 0)
        self._tail = os.pread(descriptor, min(_TAIL_BYTES, stream.size), max(0, stream.size - _TAIL_BYTES))

    def append(self, data: bytes) -> None:
        stream = self._stream
        stream.size += len(data)
        stream.crc = crc32(data, stream.crc)
        if stream.head_size < _HEAD_BYTES:
            self._head = (self._head + data)[:_HEAD_BYTES]
            stream.head_size, stream.head_crc = len(self._head), crc32(self._head)
        self._tail = (self._tail + data[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        stream.tail_crc = crc32(self._tail)


def _crc(descriptor: int, size: int) -> int:
    crc = offset = 0
    while offset < size:
        data = os.pread(descriptor, min(CHUNK_BYTES, size - offset), offset)
        if not data:
            return -1
        crc = crc32(data, crc)
        offset += len(data)
    return crc
