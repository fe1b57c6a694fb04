"""The pack format: appended bytes of any number of log files, and new events, in one object per flush.

    ray-history/logs/<ns>/<cluster>/<session>/<node>/<number / 1000>/<number>-<size>-<size of the end>.pack

A pack is

    magic "RHPACK1\\n"
    frames              independent zstd frames of about 512 KiB raw each; one frame may hold ranges of many small files
    leaf, root          in every checkpoint pack: two zstd frames of MessagePack, see below; sometimes also a group
    tail                a zstd frame of MessagePack
    footer              CRC-32 and length of the tail, flags (0), magic "RHPACK1E"

*Streams.* A pack stores streams, not files: a stream is the content of one inode while it only grew. A stream has a
number, a size, and the last name of its file. Rotation by renaming changes the name and sends no byte again. A
truncated file starts a new stream, and the old one stays. `file_names` maps streams to the names that users see. A
stream's record also identifies its file (device, inode, CRCs of its first and last bytes), so that a restarted
collector can resume from the store alone.

*Ranges.* A range maps bytes of a stream to bytes of a frame. Where ranges overlap, the newer one wins.

*Directory.* Every pack's tail lists all ranges and all changed streams since the last checkpoint, including its own. A
checkpoint (the first pack, and about every 64th) holds a *leaf*, the ranges since the checkpoint before, and a *root*:
all streams, and for every leaf which part of which stream it covers. So two listings (the folders of a thousand packs,
and the last of them) and three reads find any range of any stream: the newest tail, whose offset follows from the
pack's name; the root; one leaf.

*Groups.* Hundreds of growing files fill a root with 50,000 pairs of a leaf and a stream in hours, fifty files in days.
The next checkpoint then writes a *group*, which lists the leaves that the root listed. From then on, the root lists the
group as a whole. Finding such old ranges takes four reads.

*Damage.* Frames carry zstd's checksum and the tail a CRC. Readers skip a pack whose tail is unreadable, because the
pack before it lists everything except that pack's own ranges. If a root, leaf or group is unreadable, they also use
what earlier packs list. Bytes that cannot be found are counted and read as a filler of the same length, so that all
other offsets stay correct.

*Kinds.* A stream of kind LOG is a log file. A stream of kind EVENTS is an open segment of the collector's spool, whose
events are in no object of their own yet: gzip members with event lines. It grows by whole members, is forgotten when
its objects are stored, and is ignored by readers of logs.
"""

import re
import struct
import zlib
from collections.abc import Iterable
from typing import Annotated, NamedTuple, TypeVar

import msgspec
import zstandard

from rayhistory.errors import RayHistoryError

MAGIC = b"RHPACK1\n"
END_MAGIC = b"RHPACK1E"
LOG, EVENTS = 0, 1
"""Kinds of streams."""
PRESENT, GONE = 0, 1
"""States of a stream's file: still in the logs directory, or removed."""

MAX_FRAME_BYTES = 4 << 20
MAX_DIRECTORY_BYTES = 32 << 20
MAX_STREAMS = 120_000
"""Maximum number of streams, of links and of leaves in one directory. A collector tracks at most 50,000 files."""
MAX_RANGES = 300_000
"""Maximum number of ranges in one directory.

A collector writes a checkpoint before it has 160,000 ranges. Each pack adds at most two per file.
"""
MAX_COVERED_STREAMS = 2_000_000
"""Maximum number of pairs in one directory: a stream, and a leaf or group that covers some of its bytes."""
PACKS_PER_FOLDER = 1000

_FOOTER = struct.Struct("<III8s")
_PACK_NAME = re.compile(r"([0-9]{12})-([0-9]{1,12})-([0-9]{1,9})\.pack\Z")
_ZSTD_LEVEL = 1  # twice as fast as 3, and on logs hardly larger
T = TypeVar("T")

# Directories are untrusted. A few kilobytes can decompress to millions of records, which would fill the memory.
# MessagePack states the length of a list before its items. So a list that is too long is refused before it is decoded.
_OfStreams = msgspec.Meta(max_length=MAX_STREAMS)
_OfRanges = msgspec.Meta(max_length=MAX_RANGES)


class PackDamaged(RayHistoryError):
    """Some bytes of a pack are unreadable or inconsistent."""


# Records. All are encoded as arrays: the order of the fields is the format, their names are not.


class Stream(msgspec.Struct, array_like=True):
    id: int
    name: str
    """Last known path below the logs directory."""
    kind: int = LOG
    state: int = PRESENT
    size: int = 0
    """Number of bytes of the stream that are stored in packs."""
    since: int = 0
    """Number of the pack that first reported the file as gone."""
    device: int = 0
    inode: int = 0
    head_size: int = 0
    head_crc: int = 0
    tail_crc: int = 0
    crc: int = 0
    """CRC of all stored bytes of the stream."""


class Frame(NamedTuple):
    pack: str
    """Name of the pack, relative to the node's prefix; empty for the pack that contains this record."""
    offset: int
    size: int
    raw_size: int


class Range(NamedTuple):
    stream: int
    start: int
    length: int
    frame: Frame
    frame_offset: int
    """Start of the range in the frame's raw bytes."""

    @property
    def end(self) -> int:
        return self.start + self.length


class DirectoryLocation(msgspec.Struct, array_like=True, frozen=True):
    """Location of a leaf, root or group; `pack` is empty for the pack that contains this record."""

    pack: str
    offset: int
    size: int


class RangeColumns(msgspec.Struct, array_like=True):
    """Ranges as columns, which compress well."""

    packs: Annotated[list[str], _OfRanges]
    frame_packs: Annotated[list[int], _OfRanges]
    frame_offsets: Annotated[list[int], _OfRanges]
    frame_sizes: Annotated[list[int], _OfRanges]
    frame_raw_sizes: Annotated[list[int], _OfRanges]
    streams: Annotated[list[int], _OfRanges]
    starts: Annotated[list[int], _OfRanges]
    lengths: Annotated[list[int], _OfRanges]
    frames: Annotated[list[int], _OfRanges]
    frame_positions: Annotated[list[int], _OfRanges]


class DirectoryCoverage(msgspec.Struct, array_like=True):
    """The bytes of each stream that a leaf or group covers; `previous` is the pack before its checkpoint."""

    location: DirectoryLocation
    previous: str
    streams: Annotated[list[int], _OfStreams]
    starts: Annotated[list[int], _OfStreams]
    ends: Annotated[list[int], _OfStreams]


class DirectoryRoot(msgspec.Struct, array_like=True):
    streams: Annotated[list[Stream], _OfStreams]
    links: Annotated[dict[str, int], _OfStreams]
    """Additional names of streams: symbolic and hard links."""
    leaves: Annotated[list[DirectoryCoverage], _OfStreams]
    """Leaves that are in no group, oldest first."""
    groups: Annotated[list[DirectoryCoverage], _OfStreams] = []

    @property
    def is_consistent(self) -> bool:
        return _are_consistent(self.leaves) and _are_consistent(self.groups)


class DirectoryGroup(msgspec.Struct, array_like=True):
    leaves: Annotated[list[DirectoryCoverage], _OfStreams]

    @property
    def is_consistent(self) -> bool:
        return _are_consistent(self.leaves)


def _are_consistent(directories: list[DirectoryCoverage]) -> bool:
    if sum(len(each.streams) for each in directories) > MAX_COVERED_STREAMS:
        return False
    return all(len(each.streams) == len(each.starts) == len(each.ends) for each in directories)


class DirectoryTail(msgspec.Struct, array_like=True):
    number: int
    next_stream: int
    previous: str
    """Name of the previous pack."""
    root: DirectoryLocation
    streams: Annotated[list[Stream], _OfStreams]
    """Streams that changed since the root."""
    forgotten: Annotated[list[int], _OfStreams]
    """Streams of the root to ignore, because their bytes are in another stream or outdated."""
    links: Annotated[dict[str, int], _OfStreams]
    ranges: RangeColumns


# Names of packs


class PackName(NamedTuple):
    number: int
    size: int
    end_size: int
    """Size of the tail and the footer."""


def pack_name(number: int, size: int, end_size: int) -> str:
    return f"{number // PACKS_PER_FOLDER:09d}/{number:012d}-{size}-{end_size}.pack"


def parse_pack_name(name: str) -> PackName | None:
    match = _PACK_NAME.match(name.rpartition("/")[2])
    return PackName(int(match[1]), int(match[2]), int(match[3])) if match else None


def is_pack(name: str) -> bool:
    """Return whether a name is a valid pack name below a node's prefix. A pack directory can contain any name."""
    pack = parse_pack_name(name)
    return pack is not None and pack.end_size <= min(pack.size, MAX_DIRECTORY_BYTES) and name == pack_name(*pack)


# Ranges


def to_columns(ranges: Iterable[Range]) -> RangeColumns:
    columns = RangeColumns([], [], [], [], [], [], [], [], [], [])
    packs: dict[str, int] = {}
    frames: dict[Frame, int] = {}
    for each in ranges:
        frame = each.frame
        number = frames.get(frame)
        if number is None:
            number = frames[frame] = len(frames)
            columns.frame_packs.append(packs.setdefault(frame.pack, len(packs)))
            columns.frame_offsets.append(frame.offset)
            columns.frame_sizes.append(frame.size)
            columns.frame_raw_sizes.append(frame.raw_size)
        columns.streams.append(each.stream)
        columns.starts.append(each.start)
        columns.lengths.append(each.length)
        columns.frames.append(number)
        columns.frame_positions.append(each.frame_offset)
    columns.packs = list(packs)
    return columns


def from_columns(columns: RangeColumns, own_pack: str) -> list[Range]:
    """Decode ranges, oldest first; `own_pack` is the pack that contains the columns."""
    try:
        frames = [
            Frame(columns.packs[pack] or own_pack, offset, size, raw_size)
            for pack, offset, size, raw_size in zip(
                columns.frame_packs, columns.frame_offsets, columns.frame_sizes, columns.frame_raw_sizes, strict=True
            )
        ]
        return [
            Range(stream, start, length, frames[frame], frame_offset)
            for stream, start, length, frame, frame_offset in zip(
                columns.streams, columns.starts, columns.lengths, columns.frames, columns.frame_positions, strict=True
            )
        ]
    except (IndexError, ValueError) as error:
        raise PackDamaged(f"ranges in the directory of a pack are inconsistent ({error})") from None


# Frames and directories


class Compressor:
    """Compress frames and directories; not thread-safe."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True, write_content_size=True)

    def frame(self, data: bytes) -> bytes:
        return self._zstd.compress(data)

    def directory(self, value: DirectoryRoot | DirectoryGroup | DirectoryTail | RangeColumns) -> bytes:
        return self._zstd.compress(msgspec.msgpack.encode(value))


def unpack_frame(data: bytes, raw_size: int) -> bytes:
    """Decompress a frame, which must have `raw_size` bytes. Never allocate more than MAX_FRAME_BYTES."""
    if raw_size > MAX_FRAME_BYTES:
        raise PackDamaged(f"frame of a pack has {raw_size} bytes, more than {MAX_FRAME_BYTES}")
    content = _decompress(data, MAX_FRAME_BYTES)
    if len(content) != raw_size:
        raise PackDamaged(f"frame of a pack has {len(content)} bytes instead of {raw_size}")
    return content


def unpack_frame_into(data: bytes, target: memoryview) -> None:
    """Decompress a frame into a target of the same size, without copying or allocating."""
    try:
        if zstandard.frame_content_size(data) != len(target):
            raise PackDamaged(f"frame of a pack does not have {len(target)} bytes")
        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            if reader.readinto(target) != len(target) or reader.read(1):
                raise PackDamaged(f"frame of a pack does not have {len(target)} bytes")
    except zstandard.ZstdError as error:
        raise PackDamaged(f"frame of a pack cannot be decompressed ({error})") from None


def directory_size(data: bytes) -> int:
    """Return the size of a compressed directory after decompression; 0 if it is unknown."""
    try:
        return max(0, zstandard.frame_content_size(data))
    except zstandard.ZstdError:
        return 0


def unpack_directory(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(_decompress(data, MAX_DIRECTORY_BYTES), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PackDamaged(f"pack directory cannot be decoded ({error})") from None


def _decompress(data: bytes, max_bytes: int) -> bytes:
    try:
        if not 0 <= zstandard.frame_content_size(data) <= max_bytes:
            raise PackDamaged(f"compressed data in a pack has an unknown size, or more than {max_bytes} bytes")
        return zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise PackDamaged(f"compressed data in a pack cannot be decompressed ({error})") from None


def encode_pack_end(tail: bytes) -> bytes:
    return tail + _FOOTER.pack(zlib.crc32(tail), len(tail), 0, END_MAGIC)


def decode_pack_end(data: bytes) -> DirectoryTail:
    """Decode the tail from the last `end_size` bytes of a pack."""
    if len(data) < _FOOTER.size:
        raise PackDamaged(f"pack is truncated: it has {len(data)} bytes, less than a footer")
    crc, size, _, magic = _FOOTER.unpack(data[-_FOOTER.size :])
    tail = data[: -_FOOTER.size]
    if magic != END_MAGIC or len(tail) != size or zlib.crc32(tail) != crc:
        raise PackDamaged("pack is truncated, or its footer is damaged")
    return unpack_directory(tail, DirectoryTail)
