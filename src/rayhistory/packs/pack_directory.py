"""The pack directory of one node: streams, and the ranges that hold their bytes, as of one pack."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from rayhistory.packs.pack_format import (
    DirectoryCoverage,
    DirectoryLocation,
    DirectoryRoot,
    DirectoryTail,
    PackDamaged,
    Range,
    Stream,
    from_columns,
)


class PackDirectory(msgspec.Struct):
    """A root, combined with the tail of one pack."""

    number: int = -1
    next_stream: int = 0
    last: str = ""
    """Name of the newest readable pack."""
    root: DirectoryLocation | None = None
    streams: dict[int, Stream] = {}
    links: dict[str, int] = {}
    leaves: list[DirectoryCoverage] = []
    groups: list[DirectoryCoverage] = []
    ranges: list[Range] = []
    """Ranges that are in no leaf, oldest first."""
    changed: set[int] = set()
    """Streams that are new, or differ from the root."""
    forgotten: set[int] = set()
    """Streams of the root to ignore (see `DirectoryTail.forgotten`)."""

    @classmethod
    def from_root(cls, root: DirectoryRoot, location: DirectoryLocation) -> "PackDirectory":
        if not root.is_consistent:
            raise PackDamaged("directory of a checkpoint pack is inconsistent")
        return cls(
            root=location,
            streams={stream.id: stream for stream in root.streams},
            links=root.links,
            leaves=[_with_pack(leaf, location.pack) for leaf in root.leaves],
            groups=[_with_pack(group, location.pack) for group in root.groups],
        )

    def with_tail(self, tail: DirectoryTail, own_pack: str) -> "PackDirectory":
        streams = {**self.streams, **{stream.id: stream for stream in tail.streams}}
        for forgotten in tail.forgotten:
            streams.pop(forgotten, None)
        return PackDirectory(
            number=tail.number,
            next_stream=tail.next_stream,
            last=own_pack,
            root=self.root,
            streams=streams,
            links=tail.links,
            leaves=self.leaves,
            groups=self.groups,
            ranges=[*self.ranges, *from_columns(tail.ranges, own_pack)],
            changed={stream.id for stream in tail.streams},
            forgotten=set(tail.forgotten),
        )


def _with_pack(coverage: DirectoryCoverage, own_pack: str) -> DirectoryCoverage:
    if coverage.location.pack:
        return coverage
    location = DirectoryLocation(own_pack, coverage.location.offset, coverage.location.size)
    return DirectoryCoverage(location, coverage.previous, coverage.streams, coverage.starts, coverage.ends)


class RangeSlice(NamedTuple):
    """The requested bytes [start, end) of a stream that one range has."""

    start: int
    end: int
    range: Range


def cover(
    missing: list[tuple[int, int]], newest_first: Iterable[Range]
) -> tuple[list[RangeSlice], list[tuple[int, int]]]:
    """Cover missing bytes of a stream with its ranges. Return the slices, and the ranges still missing."""
    slices: list[RangeSlice] = []
    for each in newest_first:
        if not missing:
            break
        if not any(start < each.end and each.start < end for start, end in missing):
            continue
        still_missing: list[tuple[int, int]] = []
        for start, end in missing:
            begin, stop = max(start, each.start), min(end, each.end)
            if begin >= stop:
                still_missing.append((start, end))
                continue
            slices.append(RangeSlice(begin, stop, each))
            still_missing += [part for part in ((start, begin), (stop, end)) if part[0] < part[1]]
        missing = still_missing
    return slices, missing


def coverage_of(location: DirectoryLocation, previous: str, parts: Iterable[tuple[int, int, int]]) -> DirectoryCoverage:
    """Summarize the ranges (stream, start, end) of a leaf or group: the first start and the last end per stream."""
    bounds: dict[int, tuple[int, int]] = {}
    for stream, start, end in parts:
        first, last = bounds.get(stream, (start, end))
        bounds[stream] = (min(first, start), max(last, end))
    streams = sorted(bounds)
    starts, ends = [bounds[stream][0] for stream in streams], [bounds[stream][1] for stream in streams]
    return DirectoryCoverage(location, previous, streams, starts, ends)
