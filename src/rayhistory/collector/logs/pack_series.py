"""The series of packs of one node. A pack holds the bytes that were added to its files since the last pack.

The store decides where a series continues. A pack is uploaded, with retries, before the next one is built. A restarted
collector continues with the directory of the newest pack.
"""

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rayhistory.collector.logs.event_streams import EventStreams
from rayhistory.collector.logs.pack_builder import MAX_RAW_BYTES, PackBuilder, RecentChunks
from rayhistory.collector.logs.tailer import Tailer
from rayhistory.packs.pack_directory import PackDirectory, coverage_of
from rayhistory.packs.pack_format import (
    LOG,
    Compressor,
    DirectoryCoverage,
    DirectoryGroup,
    DirectoryLocation,
    DirectoryRoot,
    DirectoryTail,
    Range,
    encode_pack_end,
    pack_name,
    to_columns,
)

_MAX_EVENT_BYTES = 2 << 20  # leaves room for logs, however many events there are
_MAX_BYTES_PER_FILE = 4 << 20
_PACKS_PER_CHECKPOINT = 64
_MAX_ROOT_PARTS = 50_000  # pairs of leaf and stream that a root lists
_MAX_RANGES = 4096
_MAX_RANGES_IN_MEMORY = 160_000  # regardless of the number of files: they are in memory, and in every tail
_MAX_CHANGED_STREAMS = 1024


class BuiltPack(NamedTuple):
    """A pack, ready for upload."""

    name: str
    data: bytes
    raw_size: int
    """Number of new bytes before compression."""
    has_more: bool
    """True if there are more new bytes than fit into this pack."""
    files: frozenset[str]


class PackSeries:
    """Builds the packs that follow `directory`. `newest_number` is the highest pack number in use."""

    def __init__(
        self,
        logs: Path | None,
        directory: PackDirectory,
        newest_number: int = -1,
        events: EventStreams | None = None,
    ) -> None:
        self.tailer = Tailer(logs, directory.streams, directory.next_stream)
        self._events = events
        self._compressor = Compressor()
        self._number = max(directory.number, newest_number) + 1
        self._last = directory.last
        self._root = directory.root
        self._leaves = directory.leaves
        self._groups = directory.groups
        self._ranges = directory.ranges
        self._changed = directory.changed
        self._forgotten = directory.forgotten
        self._lock = threading.Lock()
        self._recent = RecentChunks()
        self._since_checkpoint = _PACKS_PER_CHECKPOINT  # the first pack is always a checkpoint

    def scan(self) -> None:
        """Scan the files between packs, so that fast rotation is not missed."""
        with self._lock:
            self.tailer.scan(self._number)

    def unshipped(self) -> list[str]:
        """Scan the log directory and list the files that have bytes in no pack yet."""
        with self._lock:
            self.tailer.scan(self._number)
            return list(self.tailer.unshipped())

    def build(self, *, final: bool = False) -> BuiltPack | None:
        """Build the next pack; None if nothing has changed."""
        with self._lock:
            return self._build(final=final)

    def _build(self, *, final: bool) -> BuiltPack | None:
        self.tailer.scan(self._number)
        builder = PackBuilder(self._compressor)
        if self._events:
            self._events.forget_stored(self.tailer)
            for stream, start, data in self._events.read(self.tailer, _MAX_EVENT_BYTES):
                self._add(builder, stream, start, data)
        self._add_logs(builder, final=final)
        if not (builder.raw_size or self.tailer.changed or self.tailer.forgotten):
            return None
        raw_size = builder.raw_size
        has_more = builder.room <= 0 or (self._events is not None and self._events.has_more)
        self._add_merged_chunks(builder)
        builder.finish()
        return self._finish(builder, raw_size, has_more=has_more)

    def _add_logs(self, builder: PackBuilder, *, final: bool) -> None:
        """Add new bytes while there is room: first up to a limit per file, then the rest."""
        for max_bytes in (_MAX_BYTES_PER_FILE, MAX_RAW_BYTES):
            if self.tailer.needs_rescan:
                self.tailer.scan(self._number)
            for file in self.tailer.due(final=final):
                for stream, start, data in self.tailer.read(file, min(max_bytes, builder.room)):
                    self._add(builder, stream, start, data)
                    if builder.room <= 0:
                        break
                if builder.room <= 0:
                    break

    def _add(self, builder: PackBuilder, stream: int, start: int, data: bytes) -> None:
        builder.add(stream, start, data)
        self._recent.add(self._number, stream, start, data)

    def _add_merged_chunks(self, builder: PackBuilder) -> None:
        merged: dict[int, list[tuple[int, int]]] = {}
        for stream, start, data in self._recent.merged(self._number):
            if stream in self.tailer.streams:
                builder.add(stream, start, data)
                merged.setdefault(stream, []).append((start, start + len(data)))
        if merged:
            self._ranges = [each for each in self._ranges if not _is_inside(each, merged.get(each.stream, ()))]

    def _finish(self, builder: PackBuilder, raw_size: int, *, has_more: bool) -> BuiltPack:
        tailer = self.tailer
        self._changed = (self._changed | tailer.changed) - tailer.forgotten
        self._forgotten |= tailer.forgotten
        if tailer.forgotten:
            self._ranges = [each for each in self._ranges if each.stream not in tailer.forgotten]
        tailer.changed, tailer.forgotten = set(), set()
        ranges = [*self._ranges, *builder.ranges]
        self._since_checkpoint += 1
        root = self._root
        if root is None or self._is_checkpoint_due(len(ranges)):
            root = self._add_checkpoint(builder, ranges)
            ranges = []
        tail = DirectoryTail(
            number=self._number,
            next_stream=tailer.next_id,
            previous=self._last,
            root=root,
            streams=[tailer.streams[number] for number in sorted(self._changed)],
            forgotten=sorted(self._forgotten),
            links=tailer.links,
            ranges=to_columns(ranges),
        )
        end = encode_pack_end(self._compressor.directory(tail))
        name = pack_name(self._number, builder.size + len(end), len(end))
        self._advance(name, root, ranges)
        streams = [tailer.streams.get(number) for number in {each.stream for each in builder.ranges}]
        files = frozenset(stream.name for stream in streams if stream and stream.kind == LOG)
        return BuiltPack(name, b"".join([*builder.parts, end]), raw_size, has_more, files)

    def _is_checkpoint_due(self, ranges: int) -> bool:
        """Return whether the pack that is being built should be a checkpoint.

        A checkpoint lists all files. So the more files there are, the more changes it takes to make one due.
        """
        streams = len(self.tailer.streams)
        return (
            self._since_checkpoint >= _PACKS_PER_CHECKPOINT
            or ranges > min(max(_MAX_RANGES, 16 * streams), _MAX_RANGES_IN_MEMORY)
            or len(self._changed) + len(self._forgotten) > max(_MAX_CHANGED_STREAMS, 2 * streams)
        )

    def _add_checkpoint(self, builder: PackBuilder, ranges: list[Range]) -> DirectoryLocation:
        leaves, groups = list(self._leaves), list(self._groups)
        if sum(len(leaf.streams) for leaf in leaves) >= _MAX_ROOT_PARTS:
            groups.append(self._add_group(builder, leaves))
            leaves = []
        if ranges:
            location = builder.add_directory(self._compressor.directory(to_columns(ranges)))
            leaves.append(coverage_of(location, self._last, ((each.stream, each.start, each.end) for each in ranges)))
        streams = list(self.tailer.streams.values())
        root = DirectoryRoot(streams, self.tailer.links, leaves, groups)
        root_location = builder.add_directory(self._compressor.directory(root))
        self._leaves, self._groups = leaves, groups
        self._changed, self._forgotten = set(), set()
        self._since_checkpoint = 0
        return root_location

    def _add_group(self, builder: PackBuilder, leaves: list[DirectoryCoverage]) -> DirectoryCoverage:
        """Write a directory of these leaves. Return its coverage: the ranges of all leaves, without dropped streams."""
        location = builder.add_directory(self._compressor.directory(DirectoryGroup(leaves)))
        parts = (part for leaf in leaves for part in zip(leaf.streams, leaf.starts, leaf.ends, strict=True))
        return coverage_of(location, self._last, (part for part in parts if part[0] in self.tailer.streams))

    def _advance(self, name: str, root: DirectoryLocation, ranges: list[Range]) -> None:
        """Insert the name of the new pack, which is known now, into all locations and ranges that are in this pack."""
        self._root = root if root.pack else DirectoryLocation(name, root.offset, root.size)
        for each in (*self._leaves[-1:], *self._groups[-1:]):
            if not each.location.pack:
                each.location = DirectoryLocation(name, each.location.offset, each.location.size)
        self._ranges = [
            each if each.frame.pack else each._replace(frame=each.frame._replace(pack=name)) for each in ranges
        ]
        self._last = name
        self._number += 1


def _is_inside(each: Range, parts: Iterable[tuple[int, int]]) -> bool:
    return any(start <= each.start and each.end <= end for start, end in parts)
