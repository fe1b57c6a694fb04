"""Making packs, one after the other, of what a node's log files and open events have become since the last one.

A log that grows by a line per flush would lie in as many places as it has lines. So small pieces are repeated: every
8th pack holds again, in one piece per file, what the last 8 brought, and likewise every 64th and every 512th. They
are kept in memory for that, within a bound. The newer range counts, so the old places are forgotten.

The store alone says where a series goes on: a pack that was made is sent, however often that must be tried, before
the next is made, and a collector that comes back begins with the catalogue of the newest pack.
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from rayhistory.collector.eventstreams import EventStreams
from rayhistory.collector.tail import PIECE, Tailer
from rayhistory.layout.packs import (
    LOG,
    MAGIC,
    Catalog,
    Compressor,
    Frame,
    Group,
    Place,
    Range,
    Root,
    SegmentInfo,
    Tail,
    covering,
    end_of_pack,
    pack_name,
    to_columns,
)

_MOST_RAW = 16 << 20
_MOST_PACKED = 4 << 20
_MOST_EVENTS = 2 << 20  # there is room for logs, however many events there are
_SHARE = 4 << 20
_PACKS_PER_SEGMENT = 64
_MOST_PARTS = 50_000  # of files, of which the root tells in which segment they are
_MOST_RANGES = 4096
_MOST_RANGES_HELD = 160_000  # however many files there are: they are in memory, and in every tail
_MOST_CHANGED = 1024
_LEVELS = (512, 64, 8)
_SMALL = 16 << 10
_MOST_REMEMBERED = 4 << 20


class Sealed(NamedTuple):
    """A pack, ready to be sent."""

    name: str
    data: bytes
    raw: int
    """New bytes in it."""
    more: bool
    """There is more than went into it."""
    files: frozenset[str]


class PackBuilder:
    """Frames of one pack; small pieces share one."""

    def __init__(self, compressor: Compressor) -> None:
        self.parts = [MAGIC]
        self.ranges: list[Range] = []
        self.raw = 0
        self.size = len(MAGIC)
        self._compressor = compressor
        self._pieces: list[tuple[int, int, bytes]] = []
        self._gathered = 0

    @property
    def room(self) -> int:
        return 0 if self.size >= _MOST_PACKED else _MOST_RAW - self.raw

    def add(self, stream: int, start: int, data: bytes) -> None:
        if self._gathered and self._gathered + len(data) > PIECE:
            self._close_frame()
        self._pieces.append((stream, start, data))
        self._gathered += len(data)
        self.raw += len(data)

    def finish(self) -> None:
        if self._pieces:
            self._close_frame()

    def put(self, data: bytes) -> Place:
        """A directory, after the frames."""
        place = Place("", self.size, len(data))
        self.parts.append(data)
        self.size += len(data)
        return place

    def _close_frame(self) -> None:
        packed = self._compressor.frame(b"".join(data for _, _, data in self._pieces))
        frame = Frame("", self.size, len(packed), self._gathered)
        inside = 0
        for stream, start, data in self._pieces:
            self.ranges.append(Range(stream, start, len(data), frame, inside))
            inside += len(data)
        self.parts.append(packed)
        self.size += len(packed)
        self._pieces, self._gathered = [], 0


class Recent:
    """Small pieces of the last packs."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[int, int, int, bytes]] = deque()
        self._size = 0

    def add(self, number: int, stream: int, start: int, data: bytes) -> None:
        if len(data) > _SMALL:
            return
        self._pieces.append((number, stream, start, data))
        self._size += len(data) + 100
        while self._size > _MOST_REMEMBERED:
            self._size -= len(self._pieces.popleft()[3]) + 100

    def joined(self, number: int) -> Iterator[tuple[int, int, bytes]]:
        """What this pack should repeat: stream, start, and data that were in several places."""
        level = next((level for level in _LEVELS if number % level == 0), None)
        if level is None:
            return
        by_stream: dict[int, list[tuple[int, bytes]]] = {}
        for when, stream, start, data in self._pieces:
            if when > number - level:
                by_stream.setdefault(stream, []).append((start, data))
        for stream, pieces in by_stream.items():
            for start, parts in _runs(pieces):
                if len(parts) > 1:
                    yield stream, start, b"".join(parts)
        if level == _LEVELS[0]:
            self._pieces.clear()
            self._size = 0


def _runs(pieces: list[tuple[int, bytes]]) -> list[tuple[int, list[bytes]]]:
    """Pieces that follow each other without a gap, up to the size of a frame."""
    runs: list[tuple[int, list[bytes]]] = []
    end = size = -1
    for start, data in pieces:
        if start == end and size + len(data) <= PIECE:
            runs[-1][1].append(data)
            size += len(data)
        else:
            runs.append((start, [data]))
            size = len(data)
        end = start + len(data)
    return runs


class PackSeries:
    """The packs of one node, from where the catalogue ends. `newest` is the highest number that is taken."""

    def __init__(
        self, directory: Path | None, catalog: Catalog, newest: int = -1, events: EventStreams | None = None
    ) -> None:
        self.tailer = Tailer(directory, catalog.streams, catalog.next_stream)
        self._events = events
        self._compressor = Compressor()
        self._number = max(catalog.number, newest) + 1
        self._last = catalog.last
        self._base = catalog.base
        self._segments = catalog.segments
        self._groups = catalog.groups
        self._ranges = catalog.ranges
        self._changed = catalog.changed
        self._forgotten = catalog.forgotten
        self._turn = threading.Lock()
        self._recent = Recent()
        self._since_base = _PACKS_PER_SEGMENT  # whatever was found, the first pack is a checkpoint

    def scan(self) -> None:
        """Looks at the files between packs, so that fast rotation is not missed."""
        with self._turn:
            self.tailer.scan(self._number)

    def waiting(self) -> list[str]:
        """Files with bytes that are in no pack, as of now."""
        with self._turn:
            self.tailer.scan(self._number)
            return list(self.tailer.waiting())

    def make(self, *, final: bool = False) -> Sealed | None:
        """The next pack; None when nothing has changed."""
        with self._turn:
            return self._make(final=final)

    def _make(self, *, final: bool) -> Sealed | None:
        self.tailer.scan(self._number)
        builder = PackBuilder(self._compressor)
        if self._events:
            self._events.forget_stored(self.tailer)
            for stream, start, data in self._events.read(self.tailer, _MOST_EVENTS):
                self._add(builder, stream, start, data)
        self._fill(builder, final=final)
        if not (builder.raw or self.tailer.changed or self.tailer.forgotten):
            return None
        raw, more = builder.raw, builder.room <= 0 or (self._events is not None and self._events.behind)
        self._repeat(builder)
        builder.finish()
        return self._seal(builder, raw, more=more)

    def _fill(self, builder: PackBuilder, *, final: bool) -> None:
        """Everything new, as far as it fits: first a share of each file, then what there is room for."""
        for share in (_SHARE, _MOST_RAW):
            if self.tailer.surprised:
                self.tailer.scan(self._number)
            for file in self.tailer.due(final=final):
                for stream, start, data in self.tailer.read(file, min(share, builder.room)):
                    self._add(builder, stream, start, data)
                    if builder.room <= 0:
                        break
                if builder.room <= 0:
                    break

    def _add(self, builder: PackBuilder, stream: int, start: int, data: bytes) -> None:
        builder.add(stream, start, data)
        self._recent.add(self._number, stream, start, data)

    def _repeat(self, builder: PackBuilder) -> None:
        repeated: dict[int, list[tuple[int, int]]] = {}
        for stream, start, data in self._recent.joined(self._number):
            if stream in self.tailer.streams:
                builder.add(stream, start, data)
                repeated.setdefault(stream, []).append((start, start + len(data)))
        if repeated:
            self._ranges = [each for each in self._ranges if not _is_inside(each, repeated.get(each.stream, ()))]

    def _seal(self, builder: PackBuilder, raw: int, *, more: bool) -> Sealed:
        tailer = self.tailer
        self._changed = (self._changed | tailer.changed) - tailer.forgotten
        self._forgotten |= tailer.forgotten
        if tailer.forgotten:
            self._ranges = [each for each in self._ranges if each.stream not in tailer.forgotten]
        tailer.changed, tailer.forgotten = set(), set()
        ranges = [*self._ranges, *builder.ranges]
        self._since_base += 1
        base = self._base
        if base is None or self._is_checkpoint(len(ranges)):
            base = self._checkpoint(builder, ranges)
            ranges = []
        tail = Tail(
            number=self._number,
            next_stream=tailer.next_id,
            previous=self._last,
            base=base,
            streams=[tailer.streams[number] for number in sorted(self._changed)],
            forgotten=sorted(self._forgotten),
            links=tailer.links,
            ranges=to_columns(ranges),
        )
        end = end_of_pack(self._compressor.directory(tail))
        name = pack_name(self._number, builder.size + len(end), len(end))
        self._go_on(name, base, ranges)
        streams = [tailer.streams.get(number) for number in {each.stream for each in builder.ranges}]
        files = frozenset(stream.name for stream in streams if stream and stream.kind == LOG)
        return Sealed(name, b"".join([*builder.parts, end]), raw, more, files)

    def _is_checkpoint(self, ranges: int) -> bool:
        """A tail should not become long, but with many files it is, and a root then costs more than tails do."""
        streams = len(self.tailer.streams)
        return (
            self._since_base >= _PACKS_PER_SEGMENT
            or ranges > min(max(_MOST_RANGES, 16 * streams), _MOST_RANGES_HELD)
            or len(self._changed) + len(self._forgotten) > max(_MOST_CHANGED, 2 * streams)
        )

    def _checkpoint(self, builder: PackBuilder, ranges: list[Range]) -> Place:
        segments, groups = list(self._segments), list(self._groups)
        if sum(len(info.streams) for info in segments) >= _MOST_PARTS:
            groups.append(self._group(builder, segments))
            segments = []
        if ranges:
            place = builder.put(self._compressor.directory(to_columns(ranges)))
            segments.append(covering(place, self._last, ((each.stream, each.start, each.end) for each in ranges)))
        streams_now = list(self.tailer.streams.values())
        root = builder.put(self._compressor.directory(Root(streams_now, self.tailer.links, segments, groups)))
        self._segments, self._groups = segments, groups
        self._changed, self._forgotten = set(), set()
        self._since_base = 0
        return root

    def _group(self, builder: PackBuilder, segments: list[SegmentInfo]) -> SegmentInfo:
        """Says what the segments say, but for streams that are forgotten."""
        place = builder.put(self._compressor.directory(Group(segments)))
        parts = (part for info in segments for part in zip(info.streams, info.starts, info.ends, strict=True))
        return covering(place, self._last, (part for part in parts if part[0] in self.tailer.streams))

    def _go_on(self, name: str, base: Place, ranges: list[Range]) -> None:
        """What was "this pack" in the directories has a name now."""
        self._base = base if base.pack else Place(name, base.at, base.size)
        for each in (*self._segments[-1:], *self._groups[-1:]):
            if not each.place.pack:
                each.place = Place(name, each.place.at, each.place.size)
        self._ranges = [
            each if each.frame.pack else each._replace(frame=each.frame._replace(pack=name)) for each in ranges
        ]
        self._last = name
        self._number += 1


def _is_inside(found: Range, parts: Iterable[tuple[int, int]]) -> bool:
    return any(start <= found.start and found.end <= end for start, end in parts)
