"""Read a node's log files from its packs, for the server, the fold, and restarted collectors."""

import asyncio
import time
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from rayhistory.errors import LogNotFound, ObjectNotFound
from rayhistory.lru import LruCache
from rayhistory.packs.compacted_packs import PackObjects
from rayhistory.packs.directory_reader import (
    DirectoryReader,
    GroupCache,
    LeafCache,
    PackStore,
    RangesByStream,
    check_bounds,
)
from rayhistory.packs.file_names import files_by_name
from rayhistory.packs.pack_directory import PackDirectory
from rayhistory.packs.pack_format import (
    EVENTS,
    MAX_FRAME_BYTES,
    DirectoryCoverage,
    Frame,
    PackDamaged,
    Stream,
    unpack_frame,
    unpack_frame_into,
)

_MAX_CONCURRENT_READS = 8
_MAX_READ_BYTES = 8 << 20
_MAX_SKIPPED_BYTES = 64 << 10  # reading this much between two frames is cheaper than another request
_MIN_THREAD_BYTES = 128 << 10  # decompressing less than this is faster than changing the thread
_MIN_LARGE_BYTES = 1 << 20  # who reads so much goes on to the next bytes: whole frames are not kept
_CACHE_BYTES = 48 << 20


class PackCache:
    """Readers, frames and directories of any number of nodes, bounded by their estimated size in memory."""

    def __init__(self, max_bytes: int = _CACHE_BYTES) -> None:
        share = max_bytes // 4
        self.readers: LruCache[str, PackReader] = LruCache(share, cost=PackReader.memory_bytes)
        self.frames: LruCache[tuple[str, Frame], bytes] = LruCache(share, cost=len)
        self.leaves: LeafCache = LruCache(share, cost=_leaf_bytes)
        self.groups: GroupCache = LruCache(share, cost=lambda leaves: 1000 + _coverage_bytes(leaves))

    def reader(self, store: PackStore, prefix: str) -> "PackReader":
        return self.readers.get(prefix) or PackReader(store, prefix, self)


class FrameSlice(NamedTuple):
    """A slice of a frame, and its position in the result."""

    begin: int
    """Start of the slice in the frame."""
    start: int
    end: int

    def is_whole(self, frame: Frame) -> bool:
        return self.begin == 0 and self.end - self.start == frame.raw_size


class PackReader:
    """Log files and event streams of the node whose packs are below `prefix`."""

    def __init__(self, store: PackStore, prefix: str, cache: PackCache | None = None) -> None:
        self.files: dict[str, Stream] = {}
        """Log files by name."""
        self.refreshed_at = float("-inf")
        self._prefix = prefix
        self._cache = cache or PackCache()
        self._objects = PackObjects(store, prefix)
        self._directories = DirectoryReader(store, prefix, self._cache.leaves, self._cache.groups, self._objects)
        self._read_slots = asyncio.Semaphore(_MAX_CONCURRENT_READS)
        self._lock = asyncio.Lock()

    @property
    def directory(self) -> PackDirectory:
        return self._directories.current

    @property
    def newest_number(self) -> int:
        """The highest number of any pack, readable or not."""
        return self._directories.newest_number

    @property
    def modified(self) -> float:
        """Time when the newest listed pack was written, by the store's clock."""
        return self._directories.modified

    @property
    def event_streams(self) -> dict[str, Stream]:
        """Streams of event lines by name: gzip members, as in the collector's spool."""
        return {stream.name: stream for stream in self.directory.streams.values() if stream.kind == EVENTS}

    @property
    def damaged(self) -> int:
        """Number of packs, pack directories and frames that could not be read."""
        return self._directories.damaged

    def memory_bytes(self) -> int:
        directory = self.directory
        records = len(directory.streams) + len(directory.ranges) + self._objects.moved_packs
        return 1000 + 400 * records + _coverage_bytes(directory.leaves) + _coverage_bytes(directory.groups)

    @property
    def was_refreshed(self) -> bool:
        return self.refreshed_at > float("-inf")

    async def refresh(self, newest_pack: str = "") -> None:
        """Look for newer packs. Directories that were read before are not read again.

        If the caller passes the newest pack, nothing is listed, unless that pack cannot be read.
        """
        async with self._lock:
            if await self._directories.refresh(newest_pack):
                self.files = files_by_name(self.directory)
            self._cache.readers.put(self._prefix, self)
            self.refreshed_at = time.monotonic()

    async def read(self, name: str, start: int, end: int) -> bytes:
        """Read bytes [start, end) of a file.

        Damaged bytes are replaced by a filler, so that all offsets stay correct.
        """
        return await self.read_stream(self._stream(name), start, end)

    async def read_to_buffer(self, name: str, start: int, end: int, buffer: bytearray) -> None:
        """Read like `read`, into a buffer that is resized to the result."""
        stream = self._stream(name)
        size = max(0, min(end, stream.size) - start)
        del buffer[size:]
        buffer.extend(bytes(size - len(buffer)))
        if buffer:
            await self.read_into(stream, start, buffer)

    def _stream(self, name: str) -> Stream:
        stream = self.files.get(name)
        if stream is None:
            raise LogNotFound(f"A file is not found at: {name}")
        return stream

    async def read_stream(self, stream: Stream, start: int, end: int) -> bytes:
        content = bytearray(max(0, min(end, stream.size) - start))
        if content:
            await self.read_into(stream, start, content)
        return bytes(content)

    async def read_into(self, stream: Stream, start: int, content: bytearray) -> None:
        """Fill `content` with the bytes of a stream from `start` on. The stream must have that many bytes."""
        end = start + len(content)
        slices, missing = await self._directories.locate(stream.id, start, end)
        by_frame: dict[Frame, list[FrameSlice]] = {}
        for each in slices:
            begin = each.range.frame_offset + each.start - each.range.start
            by_frame.setdefault(each.range.frame, []).append(FrameSlice(begin, each.start - start, each.end - start))
        filled = await self._fill(by_frame, content)
        missing += [(start + part.start, start + part.end) for part in set(_parts(by_frame)) - filled]
        for begin, stop in missing:
            self._directories.record_damage(("gap", stream.id, begin))
            content[begin - start : stop - start] = filler(stop - begin)

    async def packs_of_files(self) -> dict[str, list[tuple[int, str]]]:
        """Return for each file the packs that stored it, each with the end position of its bytes, ordered by position.

        Leaves are not read, so bytes may be attributed to the checkpoint after their pack.
        """
        by_stream: dict[int, list[tuple[int, str]]] = {}
        for leaf in await self._directories.all_leaves():
            for stream, end in zip(leaf.streams, leaf.ends, strict=True):
                by_stream.setdefault(stream, []).append((end, leaf.location.pack))
        for each in self.directory.ranges:
            by_stream.setdefault(each.stream, []).append((each.end, each.frame.pack))
        return {name: sorted(by_stream.get(stream.id, [])) for name, stream in self.files.items()}

    async def missing_bytes(self, stream: Stream) -> int:
        """Count the bytes of a stream that are in no pack."""
        slices, _ = await self._directories.locate(stream.id, 0, stream.size)
        lengths = (each.end - each.start for each in slices)
        return stream.size - sum(length for length in lengths if length <= MAX_FRAME_BYTES)

    async def _fill(self, by_frame: dict[Frame, list[FrameSlice]], content: bytearray) -> set[FrameSlice]:
        """Copy slices of frames to their positions. Return the slices that were available."""
        filled: set[FrameSlice] = set()
        uncached = []
        for frame in sorted(by_frame):
            cached = self._cache.frames.get((self._prefix, frame))
            if cached is not None:
                filled |= _copy(cached, by_frame[frame], content)
                continue
            try:
                check_bounds(frame, MAX_FRAME_BYTES + _MAX_SKIPPED_BYTES)
            except PackDamaged:
                self._directories.record_damage(frame)
            else:
                uncached.append(frame)
        fetches = (self._fetch(batch, by_frame, content) for batch in _batches(uncached))
        return filled.union(*await asyncio.gather(*fetches))

    async def _fetch(
        self, batch: list[Frame], by_frame: dict[Frame, list[FrameSlice]], content: bytearray
    ) -> set[FrameSlice]:
        begin, end = batch[0].offset, batch[-1].offset + batch[-1].size
        async with self._read_slots:
            try:
                data = await self._objects.get_range(batch[0].pack, begin, end)
            except ObjectNotFound:
                data = b""

        def unpack() -> _Unpacked:
            return _unpack(batch, data, by_frame, content)

        is_small = sum(frame.raw_size for frame in batch) < _MIN_THREAD_BYTES
        unpacked = unpack() if is_small else await asyncio.to_thread(unpack)
        for frame, raw in unpacked.frames.items():
            self._cache.frames.put((self._prefix, frame), raw)
        for frame in unpacked.damaged:
            self._directories.record_damage(frame)
        return unpacked.filled


class _Unpacked(msgspec.Struct):
    filled: set[FrameSlice]
    frames: dict[Frame, bytes]
    """Frames to cache, because adjacent ranges are in the same frames."""
    damaged: list[Frame]


def _unpack(batch: list[Frame], data: bytes, by_frame: dict[Frame, list[FrameSlice]], content: bytearray) -> _Unpacked:
    """Decompress the frames in `data`, which starts with the first one.

    Large reads decompress directly into `content`.
    """
    begin, unpacked, is_large = batch[0].offset, _Unpacked(set(), {}, []), len(content) >= _MIN_LARGE_BYTES
    for frame in batch:
        slices, packed = by_frame[frame], data[frame.offset - begin : frame.offset - begin + frame.size]
        try:
            is_last = slices[0].end == len(content)  # kept, because the next range begins in this frame
            is_complete = len(packed) == frame.size
            if is_large and is_complete and len(slices) == 1 and slices[0].is_whole(frame) and not is_last:
                with memoryview(content) as view, view[slices[0].start : slices[0].end] as target:
                    unpack_frame_into(packed, target)
                unpacked.filled.add(slices[0])
            else:
                unpacked.frames[frame] = raw = unpack_frame(packed, frame.raw_size)
                unpacked.filled |= _copy(raw, slices, content)
        except PackDamaged:
            unpacked.damaged.append(frame)
    return unpacked


def _copy(raw: bytes, slices: list[FrameSlice], content: bytearray) -> set[FrameSlice]:
    """Copy slices of a frame to their positions. Return the slices that the frame has."""
    copied = set()
    with memoryview(raw) as view:
        for part in slices:
            if 0 <= part.begin <= len(raw) - (part.end - part.start):
                content[part.start : part.end] = view[part.begin : part.begin + part.end - part.start]
                copied.add(part)
    return copied


def _parts(by_frame: dict[Frame, list[FrameSlice]]) -> Iterator[FrameSlice]:
    return (part for parts in by_frame.values() for part in parts)


def _batches(frames: list[Frame]) -> list[list[Frame]]:
    """Group frames that one request can read: in the same pack, close together, and not too large."""
    batches: list[list[Frame]] = []
    for frame in frames:
        if batches:
            first, last = batches[-1][0], batches[-1][-1]
            is_near = frame.offset - (last.offset + last.size) <= _MAX_SKIPPED_BYTES
            if frame.pack == first.pack and is_near and frame.offset + frame.size - first.offset <= _MAX_READ_BYTES:
                batches[-1].append(frame)
                continue
        batches.append([frame])
    return batches


def _leaf_bytes(ranges: RangesByStream) -> int:
    return 1000 + 200 * sum(map(len, ranges.values()))


def _coverage_bytes(directories: list[DirectoryCoverage]) -> int:
    return 30 * sum(len(each.streams) for each in directories)


def filler(size: int) -> bytes:
    """Return `size` bytes to replace damaged ones: a line that reports the damage, or only `?` if it does not fit."""
    text = f"\n[rayhistory: {size} bytes of this log are damaged in the store]".encode()
    return (text.ljust(size - 1) + b"\n") if size > len(text) else b"?" * size
