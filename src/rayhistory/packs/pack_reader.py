"""Read a node's log files from its packs, for the server, the fold, and restarted collectors."""

import asyncio
import contextlib
import time

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
)

_MAX_CONCURRENT_READS = 8
_MAX_READ_BYTES = 8 << 20
_MAX_SKIPPED_BYTES = 64 << 10  # reading this much between two frames is cheaper than another request
_MIN_THREAD_BYTES = 128 << 10  # decompressing less than this is faster than changing the thread
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
        """When the newest listed pack was written, by the store's clock."""
        return self._directories.modified

    @property
    def event_streams(self) -> dict[str, Stream]:
        """Streams of event lines by name: gzip members, as in the collector's spool."""
        return {stream.name: stream for stream in self.directory.streams.values() if stream.kind == EVENTS}

    @property
    def damaged(self) -> int:
        """Number of packs, directories and frames that could not be read."""
        return self._directories.damaged

    def memory_bytes(self) -> int:
        directory = self.directory
        records = len(directory.streams) + len(directory.ranges) + self._objects.moved_packs
        return 1000 + 400 * records + _coverage_bytes(directory.leaves) + _coverage_bytes(directory.groups)

    @property
    def was_refreshed(self) -> bool:
        return self.refreshed_at > float("-inf")

    async def refresh(self, newest_pack: str = "") -> None:
        """Look for newer packs; directories that were read before are not read again.

        A caller that has listed the packs gives the newest; then nothing is listed, unless that pack cannot be read.
        """
        async with self._lock:
            if await self._directories.refresh(newest_pack):
                self.files = files_by_name(self.directory)
            self._cache.readers.put(self._prefix, self)
            self.refreshed_at = time.monotonic()

    async def read(self, name: str, start: int, end: int) -> bytes:
        """Read bytes [start, end) of a file. Damaged bytes are replaced by a filler, so that all offsets are right."""
        stream = self.files.get(name)
        if stream is None:
            raise LogNotFound(f"A file is not found at: {name}")
        return await self.read_stream(stream, start, end)

    async def read_stream(self, stream: Stream, start: int, end: int) -> bytes:
        end = min(end, stream.size)
        if start >= end:
            return b""
        slices, missing = await self._directories.locate(stream.id, start, end)
        frames = await self._read_frames({each.range.frame for each in slices})
        content = bytearray(end - start)
        for each in slices:
            raw, length = frames.get(each.range.frame, b""), each.end - each.start
            begin = each.range.frame_offset + each.start - each.range.start
            if not 0 <= begin <= len(raw) - length:
                missing.append((each.start, each.end))
                continue
            content[each.start - start : each.end - start] = raw[begin : begin + length]
        for begin, stop in missing:
            self._directories.record_damage(("gap", stream.id, begin))
            content[begin - start : stop - start] = filler(stop - begin)
        return bytes(content)

    async def packs_of_files(self) -> dict[str, list[tuple[int, str]]]:
        """Return for each file the packs that stored it, each with the position up to which it did, by position.

        Leaves are not read, so that a part may be attributed to the checkpoint that follows its pack.
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

    async def _read_frames(self, frames: set[Frame]) -> dict[Frame, bytes]:
        contents: dict[Frame, bytes] = {}
        uncached = []
        for frame in sorted(frames):
            cached = self._cache.frames.get((self._prefix, frame))
            if cached is not None:
                contents[frame] = cached
                continue
            try:
                check_bounds(frame, MAX_FRAME_BYTES + _MAX_SKIPPED_BYTES)
            except PackDamaged:
                self._directories.record_damage(frame)
            else:
                uncached.append(frame)
        for fetched in await asyncio.gather(*(self._fetch(batch) for batch in _batches(uncached))):
            contents.update(fetched)
        return contents

    async def _fetch(self, batch: list[Frame]) -> dict[Frame, bytes]:
        begin, end = batch[0].offset, batch[-1].offset + batch[-1].size
        async with self._read_slots:
            try:
                data = await self._objects.get_range(batch[0].pack, begin, end)
            except ObjectNotFound:
                data = b""
        is_small = sum(frame.raw_size for frame in batch) < _MIN_THREAD_BYTES
        unpacked = _unpack(batch, data) if is_small else await asyncio.to_thread(_unpack, batch, data)
        for frame in batch:
            if frame in unpacked:
                self._cache.frames.put((self._prefix, frame), unpacked[frame])
            else:
                self._directories.record_damage(frame)
        return unpacked


def _unpack(batch: list[Frame], data: bytes) -> dict[Frame, bytes]:
    """Decompress the frames in `data`, which begins with the first one; damaged frames are left out."""
    begin, contents = batch[0].offset, {}
    for frame in batch:
        with contextlib.suppress(PackDamaged):
            contents[frame] = unpack_frame(
                data[frame.offset - begin : frame.offset - begin + frame.size], frame.raw_size
            )
    return contents


def _batches(frames: list[Frame]) -> list[list[Frame]]:
    """Group frames that one request can read: in the same pack, close together, and not too large together."""
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
    """Return a text of this size in place of damaged bytes; it reports the damage if there is room, and ends a line."""
    text = f"\n[rayhistory: {size} bytes of this log are damaged in the store]".encode()
    return (text.ljust(size - 1) + b"\n") if size > len(text) else b"?" * size
