"""Blocks: the lines of one category, each block stored as one gzip member.

Concatenated members are a valid gzip file. `zcat` shows the events of a segment, and objects for the store are copied
without decompression. An extra field in the gzip header has the category, the number of lines and the length of the
member. Gzip's checksum detects damage.
"""

import dataclasses
import os
import re
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from isal import isal_zlib

_COMPRESSION_LEVEL = 1
_RAW_DEFLATE = -15
_GZIP_HEADER = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff"
_EXTRA_FIELD_ID = b"RH"
_HEAD = struct.Struct("<10sH2sHII")
"""Layout of a member's header: gzip header, length of all extra fields, id and length of our field, member length,
lines.
"""
_TAIL = struct.Struct("<II")
_MEMBER_START = re.compile(re.escape(_GZIP_HEADER) + b".." + _EXTRA_FIELD_ID, re.DOTALL)
_CATEGORY = re.compile(rb"(node_events|snapshots|job_events/[A-Za-z0-9._-]+)\Z")
READ_BYTES = 1 << 20
_SAMPLE_BYTES = 64 * 1024
_MERGED_BLOCK_BYTES = 1 << 20


class Block(NamedTuple):
    """Lines of one category, not yet compressed."""

    category: str
    lines: int
    data: bytes


class Member(NamedTuple):
    """A block as it is stored in a segment: one gzip member."""

    category: str
    lines: int
    start: int
    compressed: bytes
    """All bytes of the member; empty if only the header was read."""
    size: int
    raw_size: int


class DamagedMember(Exception):
    """The bytes of a member differ from those that were written."""


@dataclasses.dataclass
class Damage:
    """Ranges of a segment that a read had to skip."""

    torn: int = 0
    """Number of incomplete writes at the end of the file, as after a power failure. None was acknowledged."""
    lost: int = 0
    """Number of acknowledged lines that are lost. A damaged range with an unknown number of lines counts as 1."""
    samples: list[bytes] = dataclasses.field(default_factory=list)

    def add_lost(self, data: bytes, lines: int = 1) -> None:
        self.lost += lines
        self.samples.append(data[:_SAMPLE_BYTES])


def merge_blocks(blocks: list[Block]) -> list[Block]:
    """Merge small blocks of a category: fewer and larger blocks compress better."""
    result: list[Block] = []
    by_category: dict[str, list[Block]] = {}
    for block in blocks:
        by_category.setdefault(block.category, []).append(block)
    for category, group in by_category.items():
        parts: list[bytes] = []
        lines = size = 0
        for block in group:
            if parts and size + len(block.data) > _MERGED_BLOCK_BYTES:
                result.append(Block(category, lines, b"".join(parts)))
                parts, lines, size = [], 0, 0
            parts.append(block.data)
            lines += block.lines
            size += len(block.data)
        result.append(Block(category, lines, b"".join(parts)))
    return result


def compress_block(block: Block) -> bytes:
    """Return the block as one gzip member."""
    category = block.category.encode()
    data = block.data
    compressed = isal_zlib.compress(data, _COMPRESSION_LEVEL, _RAW_DEFLATE)
    size = _HEAD.size + len(category) + len(compressed) + _TAIL.size
    head = _HEAD.pack(_GZIP_HEADER, 12 + len(category), _EXTRA_FIELD_ID, 8 + len(category), size, block.lines)
    return b"".join((head, category, compressed, _TAIL.pack(isal_zlib.crc32(data), len(data) & 0xFFFFFFFF)))


def decompress_member(member: Member) -> bytes:
    """Return the lines of a member; raise DamagedMember if its checksum, length or number of lines is wrong."""
    checksum, size = _TAIL.unpack_from(member.compressed, len(member.compressed) - _TAIL.size)
    begin = _HEAD.size + len(member.category)
    try:
        data = isal_zlib.decompress(memoryview(member.compressed)[begin : -_TAIL.size], _RAW_DEFLATE)
    except isal_zlib.error as error:  # type: ignore[misc]
        raise DamagedMember(str(error)) from None
    if len(data) & 0xFFFFFFFF != size or isal_zlib.crc32(data) != checksum or data.count(b"\n") != member.lines:
        raise DamagedMember("checksum of a spool block is wrong")
    return data


def read_members(file: BinaryIO, damage: Damage, *, with_data: bool = True) -> Iterator[Member]:
    """Yield all complete members of a file, and skip damaged ranges."""
    yield from read_members_between(file, 0, os.fstat(file.fileno()).st_size, damage, with_data=with_data)


def read_members_between(file: BinaryIO, start: int, end: int, damage: Damage, *, with_data: bool) -> Iterator[Member]:
    while start < end:
        member = _member_at(file, start, end, with_data=with_data)
        if member is None:
            start = _skip_to_next_member(file, start, end, damage)
        else:
            yield member
            start += member.size


def read_verified_members(file: BinaryIO, damage: Damage) -> Iterator[tuple[Member, bytes]]:
    """Yield all undamaged members of a file, with their lines."""
    end = os.fstat(file.fileno()).st_size
    for member in read_members(file, damage):
        try:
            yield member, decompress_member(member)
        except DamagedMember:
            if member.start + member.size == end:
                damage.torn += 1
            else:
                damage.add_lost(member.compressed, member.lines)


def _member_at(file: BinaryIO, start: int, end: int, *, with_data: bool) -> Member | None:
    """Return the member at this position, or None if no complete member starts here."""
    file.seek(start)
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    gzip_header, extra_size, field_id, field_size, size, lines = _HEAD.unpack(head)
    if gzip_header != _GZIP_HEADER or field_id != _EXTRA_FIELD_ID or field_size < 8 or extra_size != field_size + 4:
        return None
    if start + size > end:
        return None
    category = file.read(field_size - 8)
    rest = size - _HEAD.size - len(category)
    if rest < _TAIL.size or not _CATEGORY.match(category):
        return None
    if with_data:
        compressed = head + category + file.read(rest)
        if len(compressed) < size:
            return None
    else:
        compressed = b""
    file.seek(start + size - 4)
    raw_size = int.from_bytes(file.read(4), "little")
    return Member(category.decode(), lines, start, compressed, size, raw_size)


def _skip_to_next_member(file: BinaryIO, start: int, end: int, damage: Damage) -> int:
    """Return the position of the next complete member, or `end`, and add the skipped range to the damage."""
    file.seek(start)
    sample = file.read(_SAMPLE_BYTES)
    position = start
    while (found := _find_member_start(file, position + 1)) is not None:
        if _member_at(file, found, end, with_data=False):
            damage.add_lost(sample)
            return found
        position = found
    if _is_torn_write(sample):
        damage.torn += 1
    else:
        damage.add_lost(sample)
    return end


def _find_member_start(file: BinaryIO, position: int) -> int | None:
    overlap = b""
    file.seek(position)
    while chunk := file.read(READ_BYTES):
        if match := _MEMBER_START.search(overlap + chunk):
            return position - len(overlap) + match.start()
        position += len(chunk)
        overlap = (overlap + chunk)[-len(_GZIP_HEADER) - 4 :]
    return None


def _is_torn_write(tail: bytes) -> bool:
    """Return whether the end of a file is an incomplete member, or zeros instead of one."""
    return not tail.strip(b"\0") or tail.startswith(_GZIP_HEADER) or _GZIP_HEADER.startswith(tail[: len(_GZIP_HEADER)])
