"""Reading packs: which files a node has, and any bytes of them. For the server, the fold, and collectors coming back.

Of the store only three questions are needed; they are spelled out here, because a layout knows no store.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from typing import Generic, Protocol, TypeVar

from rayhistory.errors import LogNotFound, ObjectNotFound
from rayhistory.layout.packnames import shown
from rayhistory.layout.packs import (
    EVENTS,
    LARGEST_DIRECTORY,
    LARGEST_FRAME,
    Catalog,
    DamagedPack,
    Frame,
    Group,
    PackName,
    Piece,
    Place,
    Range,
    Ranges,
    Root,
    SegmentInfo,
    Stream,
    Tail,
    cover,
    from_columns,
    is_pack,
    parse_pack_name,
    read_end,
    unpack_directory,
    unpack_frame,
)

_READS_AT_ONCE = 8
_ONE_READ = 8 << 20
_WORTH_SKIPPING = 64 << 10
_MOST_DAMAGE = 10_000
_MOST_STEPS_BACK = 50
T = TypeVar("T")


class Info(Protocol):
    @property
    def key(self) -> str: ...


class Folder(Protocol):
    @property
    def folders(self) -> Sequence[str]: ...


class Readable(Protocol):
    """What is asked of a store."""

    async def get_range(self, key: str, start: int, end: int) -> bytes: ...

    def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[Info]: ...

    async def list_folder(self, prefix: str) -> Folder: ...


class Kept(Generic[T]):
    """The values used last, as many as fit."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._weight = 0
        self._values: OrderedDict[object, tuple[T, int]] = OrderedDict()

    def get(self, key: object) -> T | None:
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def keep(self, key: object, value: T, weight: int) -> None:
        self.drop(key)
        self._values[key] = (value, weight)
        self._weight += weight
        while self._weight > self._budget and self._values:
            self._weight -= self._values.popitem(last=False)[1][1]

    def drop(self, key: object) -> None:
        if found := self._values.pop(key, None):
            self._weight -= found[1]


class Memory:
    """What is kept of any number of nodes' packs, within one bound."""

    def __init__(self, budget: int = 48 << 20) -> None:
        self.readers: Kept[PackReader] = Kept(budget // 4)
        self.frames: Kept[bytes] = Kept(budget // 4)
        self.segments: Kept[dict[int, list[Range]]] = Kept(budget // 4)
        self.groups: Kept[list[SegmentInfo]] = Kept(budget // 4)

    def reader(self, store: Readable, prefix: str) -> "PackReader":
        return self.readers.get(prefix) or PackReader(store, prefix, self)


class PackReader:
    """The packs of one node, below `prefix`."""

    def __init__(self, store: Readable, prefix: str, memory: Memory | None = None) -> None:
        self.catalog = Catalog()
        self.names: dict[str, Stream] = {}
        self.newest = -1
        """The highest number of any pack, readable or not."""
        self.refreshed = float("-inf")
        self._store = store
        self._prefix = prefix
        self._memory = memory or Memory()
        self._damaged: set[object] = set()
        self._places = asyncio.Semaphore(_READS_AT_ONCE)
        self._turn = asyncio.Lock()

    @property
    def events(self) -> dict[str, Stream]:
        """Streams of event lines: gzip members, as the collector's spool has them."""
        return {stream.name: stream for stream in self.catalog.streams.values() if stream.kind == EVENTS}

    @property
    def damaged(self) -> int:
        """Packs, directories and frames that could not be read."""
        return len(self._damaged)

    async def refresh(self) -> None:
        """Looks for newer packs; what has been read of older ones is not read again."""
        async with self._turn:
            catalog = await self._open(None)
            if catalog is not None and catalog is not self.catalog:
                self.names = shown(catalog)
                self.catalog = catalog
            weight = 1000 + 400 * (len(self.catalog.streams) + len(self.catalog.ranges))
            weight += _weight(self.catalog.segments) + _weight(self.catalog.groups)
            self._memory.readers.keep(self._prefix, self, weight)
            self.refreshed = time.monotonic()

    async def read(self, name: str, start: int, end: int) -> bytes:
        """Bytes [start, end) of a file; what is damaged is filled, so that the offsets of the rest are true."""
        stream = self.names.get(name)
        if stream is None:
            raise LogNotFound(f"A file is not found at: {name}")
        return await self.read_stream(stream, start, end)

    async def read_stream(self, stream: Stream, start: int, end: int) -> bytes:
        end = min(end, stream.size)
        if start >= end:
            return b""
        pieces, missing = await self._find(stream.id, start, end)
        frames = await self._frames({piece.found.frame for piece in pieces})
        content = bytearray(end - start)
        for piece in pieces:
            raw, length = frames.get(piece.found.frame, b""), piece.end - piece.start
            begin = piece.found.inside + piece.start - piece.found.start
            if not 0 <= begin <= len(raw) - length:
                missing.append((piece.start, piece.end))
                continue
            content[piece.start - start : piece.end - start] = raw[begin : begin + length]
        for begin, stop in missing:
            self._note(("gap", stream.id, begin))
            content[begin - start : stop - start] = filler(stop - begin)
        return bytes(content)

    async def missing(self, stream: Stream) -> int:
        """How many bytes of a stream are in no pack."""
        pieces, _ = await self._find(stream.id, 0, stream.size)
        lengths = (piece.end - piece.start for piece in pieces)
        return stream.size - sum(length for length in lengths if length <= LARGEST_FRAME)

    # Directories

    async def _open(self, before: str | None, steps: int = 0) -> Catalog | None:
        """What the newest readable pack (of those before the given one) says; None when there are none.

        Where the root under it is damaged, the packs before that root are asked: each step leads further back.
        """
        if steps > _MOST_STEPS_BACK:
            return None
        async for name in self._newest_first(before):
            if before is None:
                self.newest = max(self.newest, numbered(name).number)
            if name == self.catalog.last:
                return self.catalog
            tail = await self._tail(name)
            if tail is None:
                continue
            place = _base(tail, name)
            base = await self._root(place) or await self._open(min(place.pack, name), steps + 1) or Catalog()
            try:
                return base.with_tail(tail, name)
            except DamagedPack:
                self._note(name)
        return None

    async def _newest_first(self, before: str | None) -> AsyncIterator[str]:
        folders = (await self._store.list_folder(self._prefix)).folders
        for folder in sorted((each for each in folders if each.isdigit()), reverse=True):
            if before is not None and folder > before.partition("/")[0]:
                continue
            inside = f"{self._prefix}/{folder}"
            after = f"{self._prefix}/{self.catalog.last}" if self.catalog.last.startswith(f"{folder}/") else ""
            names = [
                name
                async for info in self._store.list_all(inside, "" if before is not None else after)
                if is_pack(name := f"{folder}/{info.key.rpartition('/')[2]}")
            ]
            for name in sorted(names, reverse=True):
                if before is None or name < before:
                    yield name
            if before is None and after:
                yield self.catalog.last

    async def _tail(self, name: str) -> Tail | None:
        try:
            pack = numbered(name)
            data = await self._store.get_range(f"{self._prefix}/{name}", pack.size - pack.end_size, pack.size)
            return read_end(data)
        except (DamagedPack, ObjectNotFound):
            self._note(name)
            return None

    async def _root(self, place: Place) -> Catalog | None:
        if place == self.catalog.base:
            known = self.catalog
            return Catalog(
                base=place, streams=known.streams, links=known.links, segments=known.segments, groups=known.groups
            )
        root = await self._directory(place, Root)
        try:
            return Catalog.of_root(root, place) if root else None
        except DamagedPack:
            self._note(place)
            return None

    async def _directory(self, place: Place, kind: type[T]) -> T | None:
        try:
            _check(place, LARGEST_DIRECTORY)
            data = await self._store.get_range(f"{self._prefix}/{place.pack}", place.at, place.at + place.size)
            return unpack_directory(data, kind)
        except (DamagedPack, ObjectNotFound):
            self._note(place)
            return None

    async def _segment(self, info: SegmentInfo) -> dict[int, list[Range]]:
        """The segment's ranges by stream, oldest first."""
        key = (self._prefix, info.place)
        if (known := self._memory.segments.get(key)) is not None:
            return known
        ranges: list[Range] = []
        columns = await self._directory(info.place, Ranges)
        own = info.place.pack
        if columns is None and info.previous and (tail := await self._tail(info.previous)):
            columns, own = tail.ranges, info.previous
        if columns:
            try:
                ranges = from_columns(columns, own)
            except DamagedPack:
                self._note(info.place)
        by_stream: dict[int, list[Range]] = {}
        for each in ranges:
            by_stream.setdefault(each.stream, []).append(each)
        self._memory.segments.keep(key, by_stream, 1000 + 200 * len(ranges))
        return by_stream

    async def _group(self, info: SegmentInfo) -> list[SegmentInfo]:
        """The group's segments; where it is damaged, they are those of the root before it."""
        key = (self._prefix, info.place)
        if (known := self._memory.groups.get(key)) is not None:
            return known
        segments: list[SegmentInfo] = []
        group = await self._directory(info.place, Group)
        if group and group.fits:
            segments = group.segments
        elif info.previous and (tail := await self._tail(info.previous)):
            root = await self._root(_base(tail, info.previous))
            segments = root.segments if root else []
        self._memory.groups.keep(key, segments, 1000 + _weight(segments))
        return segments

    async def _find(self, stream: int, start: int, end: int) -> tuple[list[Piece], list[tuple[int, int]]]:
        catalog = self.catalog
        recent = [each for each in reversed(catalog.ranges) if each.stream == stream]
        pieces, missing = cover([(start, end)], recent)
        for group in (None, *reversed(catalog.groups)):
            if group and not _touches(group, stream, missing):
                continue
            for info in reversed(await self._group(group) if group else catalog.segments):
                if not _touches(info, stream, missing):
                    continue
                found = (await self._segment(info)).get(stream, [])
                more, missing = cover(missing, reversed(found))
                pieces += more
        return pieces, missing

    # Frames

    async def _frames(self, wanted: set[Frame]) -> dict[Frame, bytes]:
        found: dict[Frame, bytes] = {}
        absent = []
        for frame in sorted(wanted):
            known = self._memory.frames.get((self._prefix, frame))
            if known is not None:
                found[frame] = known
                continue
            try:
                _check(frame, LARGEST_FRAME + _WORTH_SKIPPING)
            except DamagedPack:
                self._note(frame)
            else:
                absent.append(frame)
        for some in await asyncio.gather(*(self._fetch(group) for group in _neighbours(absent))):
            found.update(some)
        return found

    async def _fetch(self, group: list[Frame]) -> dict[Frame, bytes]:
        begin, end = group[0].at, group[-1].at + group[-1].size
        async with self._places:
            try:
                data = await self._store.get_range(f"{self._prefix}/{group[0].pack}", begin, end)
            except ObjectNotFound:
                data = b""
        found = {}
        for frame in group:
            try:
                raw = unpack_frame(data[frame.at - begin : frame.at - begin + frame.size], frame.raw)
            except DamagedPack:
                self._note(frame)
                continue
            found[frame] = raw
            self._memory.frames.keep((self._prefix, frame), raw, len(raw))
        return found

    def _note(self, what: object) -> None:
        if len(self._damaged) < _MOST_DAMAGE:
            self._damaged.add(what)


def numbered(name: str) -> PackName:
    pack = parse_pack_name(name)
    if pack is None or not is_pack(name):
        raise DamagedPack(f"not a pack: {name[:200]!r}")
    return pack


def _check(part: Place | Frame, largest: int) -> None:
    """Raises for what cannot be a part of a pack: nothing else is asked of the store, and never more than that."""
    if not (part.at >= 0 and 0 <= part.size <= largest and part.at + part.size <= numbered(part.pack).size):
        raise DamagedPack(f"bytes {part.at} to {part.at + part.size} of {part.pack[:200]!r}")


def _base(tail: Tail, own: str) -> Place:
    return Place(tail.base.pack or own, tail.base.at, tail.base.size)


def _weight(segments: list[SegmentInfo]) -> int:
    return 30 * sum(len(info.streams) for info in segments)


def _touches(info: SegmentInfo, stream: int, missing: list[tuple[int, int]]) -> bool:
    if not missing:
        return False
    try:
        at = info.streams.index(stream)
    except ValueError:
        return False
    first, last = info.starts[at], info.ends[at]
    return any(start < last and first < end for start, end in missing)


def _neighbours(frames: list[Frame]) -> list[list[Frame]]:
    """Frames that one read can bring: in the same pack, near each other, and not too much at once."""
    groups: list[list[Frame]] = []
    for frame in frames:
        if groups:
            first, last = groups[-1][0], groups[-1][-1]
            near = frame.at - (last.at + last.size) <= _WORTH_SKIPPING
            if frame.pack == first.pack and near and frame.at + frame.size - first.at <= _ONE_READ:
                groups[-1].append(frame)
                continue
        groups.append([frame])
    return groups


def filler(size: int) -> bytes:
    """What is read in the place of bytes that are damaged: it says so, where there is room, and ends a line."""
    text = f"\n[rayhistory: {size} bytes of this log are damaged in the store]".encode()
    return (text.ljust(size - 1) + b"\n") if size > len(text) else b"?" * size
