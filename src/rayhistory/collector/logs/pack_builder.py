"""Build one pack: collect chunks into frames, and merge small chunks of recent packs."""

from collections import deque
from collections.abc import Iterator

from rayhistory.collector.logs.tracked_file import CHUNK_BYTES
from rayhistory.packs.pack_format import MAGIC, Compressor, DirectoryLocation, Frame, Range

MAX_RAW_BYTES = 16 << 20
_MAX_PACKED_BYTES = 4 << 20
_MERGE_INTERVALS = (512, 64, 8)
_MAX_SMALL_CHUNK_BYTES = 16 << 10
_MAX_REMEMBERED_BYTES = 4 << 20
_CHUNK_OVERHEAD_BYTES = 100


class PackBuilder:
    """Collects the frames of one pack. Small chunks share a frame."""

    def __init__(self, compressor: Compressor) -> None:
        self.parts = [MAGIC]
        self.ranges: list[Range] = []
        self.raw_size = 0
        self.size = len(MAGIC)
        self._compressor = compressor
        self._chunks: list[tuple[int, int, bytes]] = []
        self._chunks_size = 0

    @property
    def room(self) -> int:
        return 0 if self.size >= _MAX_PACKED_BYTES else MAX_RAW_BYTES - self.raw_size

    def add(self, stream: int, start: int, data: bytes) -> None:
        if self._chunks_size and self._chunks_size + len(data) > CHUNK_BYTES:
            self._close_frame()
        self._chunks.append((stream, start, data))
        self._chunks_size += len(data)
        self.raw_size += len(data)

    def finish(self) -> None:
        if self._chunks:
            self._close_frame()

    def add_directory(self, data: bytes) -> DirectoryLocation:
        """Append a pack directory after the frames, and return its location in the pack."""
        location = DirectoryLocation("", self.size, len(data))
        self.parts.append(data)
        self.size += len(data)
        return location

    def _close_frame(self) -> None:
        packed = self._compressor.frame(b"".join(data for _, _, data in self._chunks))
        frame = Frame("", self.size, len(packed), self._chunks_size)
        offset = 0
        for stream, start, data in self._chunks:
            self.ranges.append(Range(stream, start, len(data), frame, offset))
            offset += len(data)
        self.parts.append(packed)
        self.size += len(packed)
        self._chunks, self._chunks_size = [], 0


class RecentChunks:
    """Small chunks of recent packs, kept in memory up to a limit, to write them again as larger chunks.

    A log that grows by one line per flush would otherwise be spread over thousands of packs. Every 8th pack repeats the
    small chunks of the last 8 packs as one chunk per file. Every 64th and 512th pack does the same for 64 and 512
    packs.
    """

    def __init__(self) -> None:
        self._chunks: deque[tuple[int, int, int, bytes]] = deque()
        self._size = 0

    def add(self, pack_number: int, stream: int, start: int, data: bytes) -> None:
        if len(data) > _MAX_SMALL_CHUNK_BYTES:
            return
        self._chunks.append((pack_number, stream, start, data))
        self._size += len(data) + _CHUNK_OVERHEAD_BYTES
        while self._size > _MAX_REMEMBERED_BYTES:
            self._size -= len(self._chunks.popleft()[3]) + _CHUNK_OVERHEAD_BYTES

    def merged(self, pack_number: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield the merged chunks that this pack should repeat, as stream, start and data."""
        interval = next((interval for interval in _MERGE_INTERVALS if pack_number % interval == 0), None)
        if interval is None:
            return
        by_stream: dict[int, list[tuple[int, bytes]]] = {}
        for number, stream, start, data in self._chunks:
            if number > pack_number - interval:
                by_stream.setdefault(stream, []).append((start, data))
        for stream, chunks in by_stream.items():
            for start, parts in _adjacent(chunks):
                if len(parts) > 1:
                    yield stream, start, b"".join(parts)
        if interval == _MERGE_INTERVALS[0]:
            self._chunks.clear()
            self._size = 0


def _adjacent(chunks: list[tuple[int, bytes]]) -> list[tuple[int, list[bytes]]]:
    """Group chunks that follow each other without a gap, up to the size of a frame."""
    groups: list[tuple[int, list[bytes]]] = []
    end = size = -1
    for start, data in chunks:
        if start == end and size + len(data) <= CHUNK_BYTES:
            groups[-1][1].append(data)
            size += len(data)
        else:
            groups.append((start, [data]))
            size = len(data)
        end = start + len(data)
    return groups
