"""Packs: how the appended bytes of any number of log files, and new events, become one object per flush.

    ray-history/logs/<ns>/<cluster>/<session>/<node>/<number / 1000>/<number>-<size>-<size of the end>.pack

A pack is

    magic "RHPACK1\\n"
    frames              zstd, independent, about 512 KiB of raw bytes each; a frame may hold ranges of many small files
    segment, root       in every checkpoint pack: two zstd frames of MessagePack, see below; now and then a group
    tail                a zstd frame of MessagePack
    footer              CRC-32 and length of the tail, flags (0), magic "RHPACK1E"

*Streams.* What is stored is not files but streams: one stream is what one inode held while it only grew. A stream
has a number, a size, and the name under which it was last seen. Rotation by renaming changes the name and sends no
byte again. A file that was cut begins a new stream, and the old one stays. `packnames` says under which names people
see them. A stream's record also holds what identifies its file (device, inode, CRCs of its first and last bytes),
so that a collector that comes back finds in the store alone where it has to go on.

*Ranges.* A range says: these bytes of that stream are there in that frame. Where ranges overlap, the newer counts.

*Directories.* Every pack's tail holds all ranges and all changed streams since the last checkpoint, its own included.
A checkpoint (the first pack, and about every 64th) holds a *segment*, the ranges since the checkpoint before, and a
*root*: all streams, and for every segment which part of which stream it covers. So, from two listings (the folders of
a thousand packs, and the last of them), any range of any stream is found in three reads: the newest tail, whose place
is in the pack's name; the root; one segment.

*Groups.* When hundreds of files have grown for hours, segments and files become too many for a root (50,000 pairs; with
fifty files that takes days). The next checkpoint then makes a *group*, which says of each segment what the root said;
the root says it of the group as a whole, and what is so old is found in four reads.

*Damage.* Frames carry zstd's checksum and the tail a CRC. A pack whose tail cannot be read is passed over, for the one
before it holds all but that pack's own ranges; likewise a root, a segment or a group. What cannot be found is counted,
and read as a filler of the same length, so that the offsets of everything else stay true.

*Kinds.* A stream of kind LOG is a log file. One of kind EVENTS is a file of the collector's spool, whose events are in
no object of their own yet: gzip members with event lines. It grows by whole members, is forgotten when the objects are
there, and is passed over by readers of logs.
"""

import re
import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import msgspec
import zstandard

from rayhistory.errors import RayHistoryError

MAGIC = b"RHPACK1\n"
END_MAGIC = b"RHPACK1E"
LOG, EVENTS = 0, 1
PRESENT, GONE = 0, 1
"""Whether a stream's file is there."""

LARGEST_FRAME = 4 << 20
LARGEST_DIRECTORY = 64 << 20
PER_FOLDER = 1000

_FOOTER = struct.Struct("<III8s")
_NAME = re.compile(r"([0-9]{12})-([0-9]{1,12})-([0-9]{1,9})\.pack\Z")
_LEVEL = 1  # twice as fast as 3, and on logs hardly larger
T = TypeVar("T")


class DamagedPack(RayHistoryError):
    """Something in a pack that is not as it was written."""


class Stream(msgspec.Struct, array_like=True):
    id: int
    name: str
    """Path below the logs directory: where it is, or was last."""
    kind: int = LOG
    state: int = PRESENT
    size: int = 0
    """Bytes of it that are in packs."""
    since: int = 0
    """The pack that first said that it is gone."""
    device: int = 0
    inode: int = 0
    head_size: int = 0
    head_crc: int = 0
    tail_crc: int = 0
    crc: int = 0
    """Of all its bytes."""


class Frame(NamedTuple):
    pack: str
    """Relative to the node's prefix; empty for the pack in which this is written."""
    at: int
    size: int
    raw: int


class Range(NamedTuple):
    stream: int
    start: int
    length: int
    frame: Frame
    inside: int
    """Where in the frame's raw bytes it begins."""

    @property
    def end(self) -> int:
        return self.start + self.length


class Place(msgspec.Struct, array_like=True, frozen=True):
    """A directory inside a pack; the pack is empty when it is the same one."""

    pack: str
    at: int
    size: int


class Ranges(msgspec.Struct, array_like=True):
    """Ranges as columns, which compress well."""

    packs: list[str]
    frame_packs: list[int]
    frame_ats: list[int]
    frame_sizes: list[int]
    frame_raws: list[int]
    streams: list[int]
    starts: list[int]
    lengths: list[int]
    frames: list[int]
    insides: list[int]


class SegmentInfo(msgspec.Struct, array_like=True):
    """Which bytes of which streams a segment knows the places of; `previous` is the pack before its checkpoint."""

    place: Place
    previous: str
    streams: list[int]
    starts: list[int]
    ends: list[int]


class Root(msgspec.Struct, array_like=True):
    streams: list[Stream]
    links: dict[str, int]
    """More names of streams: symbolic and hard links."""
    segments: list[SegmentInfo]
    """Those in no group, oldest first."""
    groups: list[SegmentInfo] = []

    @property
    def fits(self) -> bool:
        return _fit(self.segments) and _fit(self.groups)


class Group(msgspec.Struct, array_like=True):
    segments: list[SegmentInfo]

    @property
    def fits(self) -> bool:
        return _fit(self.segments)


def _fit(segments: list[SegmentInfo]) -> bool:
    return all(len(info.streams) == len(info.starts) == len(info.ends) for info in segments)


class Tail(msgspec.Struct, array_like=True):
    number: int
    next_stream: int
    previous: str
    """The pack before."""
    base: Place
    """The root under it."""
    streams: list[Stream]
    forgotten: list[int]
    """Streams of the root that are of no use any more: their bytes are in another one, or were a passing state."""
    links: dict[str, int]
    ranges: Ranges


# Names


class PackName(NamedTuple):
    number: int
    size: int
    end_size: int
    """Of the tail and the footer."""


def pack_name(number: int, size: int, end_size: int) -> str:
    return f"{number // PER_FOLDER:09d}/{number:012d}-{size}-{end_size}.pack"


def parse_pack_name(name: str) -> PackName | None:
    """None for what is no pack."""
    match = _NAME.match(name.rpartition("/")[2])
    return PackName(int(match[1]), int(match[2]), int(match[3])) if match else None


def is_pack(name: str) -> bool:
    """Whether this can be the name of a pack below a node's prefix, and nothing else: directories may say anything."""
    pack = parse_pack_name(name)
    return pack is not None and pack.end_size <= min(pack.size, LARGEST_DIRECTORY) and name == pack_name(*pack)


# Ranges


def to_columns(ranges: Iterable[Range]) -> Ranges:
    columns = Ranges([], [], [], [], [], [], [], [], [], [])
    packs: dict[str, int] = {}
    frames: dict[Frame, int] = {}
    for found in ranges:
        frame = found.frame
        number = frames.get(frame)
        if number is None:
            number = frames[frame] = len(frames)
            columns.frame_packs.append(packs.setdefault(frame.pack, len(packs)))
            columns.frame_ats.append(frame.at)
            columns.frame_sizes.append(frame.size)
            columns.frame_raws.append(frame.raw)
        columns.streams.append(found.stream)
        columns.starts.append(found.start)
        columns.lengths.append(found.length)
        columns.frames.append(number)
        columns.insides.append(found.inside)
    columns.packs = list(packs)
    return columns


def from_columns(columns: Ranges, own: str) -> list[Range]:
    """The ranges again, oldest first; `own` is the pack that they were read from."""
    try:
        frames = [
            Frame(columns.packs[pack] or own, at, size, raw)
            for pack, at, size, raw in zip(
                columns.frame_packs, columns.frame_ats, columns.frame_sizes, columns.frame_raws, strict=True
            )
        ]
        return [
            Range(stream, start, length, frames[frame], inside)
            for stream, start, length, frame, inside in zip(
                columns.streams, columns.starts, columns.lengths, columns.frames, columns.insides, strict=True
            )
        ]
    except (IndexError, ValueError) as error:
        raise DamagedPack(f"ranges that do not fit together ({error})") from None


# Frames and directories


class Compressor:
    """Of one thread."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True)

    def frame(self, data: bytes) -> bytes:
        return self._zstd.compress(data)

    def directory(self, value: Root | Group | Tail | Ranges) -> bytes:
        return self._zstd.compress(msgspec.msgpack.encode(value))


def unpack_frame(data: bytes, raw: int) -> bytes:
    """The raw bytes of a frame, no more than it should hold whatever it says."""
    if raw > LARGEST_FRAME:
        raise DamagedPack(f"a frame of {raw} bytes")
    content = _unpacked(data, LARGEST_FRAME)
    if len(content) != raw:
        raise DamagedPack("a frame of another length")
    return content


def unpack_directory(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(_unpacked(data, LARGEST_DIRECTORY), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedPack(f"a directory that cannot be read ({error})") from None


def _unpacked(data: bytes, largest: int) -> bytes:
    try:
        if not 0 <= zstandard.frame_content_size(data) <= largest:
            raise DamagedPack("a frame of unknown or impossible size")
        return zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise DamagedPack(f"damaged frame ({error})") from None


def end_of_pack(tail: bytes) -> bytes:
    return tail + _FOOTER.pack(zlib.crc32(tail), len(tail), 0, END_MAGIC)


def read_end(data: bytes) -> Tail:
    """The tail from the last bytes of a pack: as many as its name says."""
    if len(data) < _FOOTER.size:
        raise DamagedPack("a pack without an end")
    crc, size, _, magic = _FOOTER.unpack(data[-_FOOTER.size :])
    tail = data[: -_FOOTER.size]
    if magic != END_MAGIC or len(tail) != size or zlib.crc32(tail) != crc:
        raise DamagedPack("a pack whose end is damaged or cut off")
    return unpack_directory(tail, Tail)


# What all directories together say


class Catalog(msgspec.Struct):
    """All that is known of one node's streams as of one pack."""

    number: int = -1
    next_stream: int = 0
    last: str = ""
    """The newest pack that could be read."""
    base: Place | None = None
    streams: dict[int, Stream] = {}
    links: dict[str, int] = {}
    segments: list[SegmentInfo] = []
    groups: list[SegmentInfo] = []
    ranges: list[Range] = []
    """Those in no segment, oldest first."""
    changed: set[int] = set()
    forgotten: set[int] = set()
    """Streams that differ from the base, or are only there."""

    @classmethod
    def of_root(cls, root: Root, place: Place) -> "Catalog":
        if not root.fits:
            raise DamagedPack("a root whose segments do not fit together")
        return cls(
            base=place,
            streams={stream.id: stream for stream in root.streams},
            links=root.links,
            segments=[_placed(segment, place.pack) for segment in root.segments],
            groups=[_placed(group, place.pack) for group in root.groups],
        )

    def with_tail(self, tail: Tail, own: str) -> "Catalog":
        streams = {**self.streams, **{stream.id: stream for stream in tail.streams}}
        for forgotten in tail.forgotten:
            streams.pop(forgotten, None)
        return Catalog(
            number=tail.number,
            next_stream=tail.next_stream,
            last=own,
            base=self.base,
            streams=streams,
            links=tail.links,
            segments=self.segments,
            groups=self.groups,
            ranges=[*self.ranges, *from_columns(tail.ranges, own)],
            changed={stream.id for stream in tail.streams},
            forgotten=set(tail.forgotten),
        )


def _placed(segment: SegmentInfo, own: str) -> SegmentInfo:
    if segment.place.pack:
        return segment
    place = Place(own, segment.place.at, segment.place.size)
    return SegmentInfo(place, segment.previous, segment.streams, segment.starts, segment.ends)


class Piece(NamedTuple):
    """A part of a range that is wanted: bytes [start, end) of the stream."""

    start: int
    end: int
    found: Range


def cover(missing: list[tuple[int, int]], newest_first: Iterable[Range]) -> tuple[list[Piece], list[tuple[int, int]]]:
    """Takes the missing parts of a stream from its ranges; gives what was found, and what is missing still."""
    pieces: list[Piece] = []
    for found in newest_first:
        if not missing:
            break
        if not any(start < found.end and found.start < end for start, end in missing):
            continue
        left: list[tuple[int, int]] = []
        for start, end in missing:
            begin, stop = max(start, found.start), min(end, found.end)
            if begin >= stop:
                left.append((start, end))
                continue
            pieces.append(Piece(begin, stop, found))
            left += [part for part in ((start, begin), (stop, end)) if part[0] < part[1]]
        missing = left
    return pieces, missing


def covering(place: Place, previous: str, parts: Iterable[tuple[int, int, int]]) -> SegmentInfo:
    """Of a directory that knows these parts: stream, start and end. For each stream, all from the first to the last."""
    found: dict[int, tuple[int, int]] = {}
    for stream, start, end in parts:
        first, last = found.get(stream, (start, end))
        found[stream] = (min(first, start), max(last, end))
    streams = sorted(found)
    starts, ends = [found[stream][0] for stream in streams], [found[stream][1] for stream in streams]
    return SegmentInfo(place, previous, streams, starts, ends)
