"""Lines of one category, as the spool keeps them: a gzip member that says of itself what it is and how long.

A row of members is again a gzip file: `zcat` shows the events of a spool file, and what becomes an object in the
store is copied from it without looking inside. The category, the number of lines and the length stand in the extra
field that gzip's header has for such things; its checksum tells what is damaged.
"""

import dataclasses
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from isal import isal_zlib

_LEVEL = 1
_RAW = -15
_GZIP = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff"
_MARK = b"RH"
_HEAD = struct.Struct("<10sH2sHII")  # gzip's own, length of the extra field, mark, its length, whole length, lines
_TAIL = struct.Struct("<II")
_BEGINNING = re.compile(re.escape(_GZIP) + b".." + _MARK, re.DOTALL)
_CATEGORY = re.compile(rb"(node_events|snapshots|job_events/[A-Za-z0-9._-]+)\Z")
_READ = 1 << 20
_SHOWN = 64 * 1024
_TOGETHER = 1 << 20


class Block(NamedTuple):
    category: str
    lines: int
    data: bytes


class Member(NamedTuple):
    category: str
    lines: int
    start: int
    packed: bytes
    """The whole member; empty when only the beginnings are read."""
    size: int
    raw: int


class DamagedMember(Exception):
    """The bytes of a member are not those that were written."""


@dataclasses.dataclass
class Damage:
    """What a reading had to leave out."""

    torn: int = 0
    """An end that was being written when the power failed. It was never acknowledged."""
    lost: int = 0
    """Lines that were acknowledged; 1 where nobody can tell how many."""
    samples: list[bytes] = dataclasses.field(default_factory=list)

    def note(self, data: bytes, lines: int = 1) -> None:
        self.lost += lines
        self.samples.append(data[:_SHOWN])


def merged(blocks: list[Block]) -> list[Block]:
    """Small blocks of one category become one: they compress better, and there are fewer."""
    result: list[Block] = []
    of_category: dict[str, list[Block]] = {}
    for block in blocks:
        of_category.setdefault(block.category, []).append(block)
    for category, each in of_category.items():
        parts: list[bytes] = []
        lines = size = 0
        for block in each:
            if parts and size + len(block.data) > _TOGETHER:
                result.append(Block(category, lines, b"".join(parts)))
                parts, lines, size = [], 0, 0
            parts.append(block.data)
            lines += block.lines
            size += len(block.data)
        result.append(Block(category, lines, b"".join(parts)))
    return result


def pack(block: Block) -> bytes:
    category = block.category.encode()
    data = block.data
    packed = isal_zlib.compress(data, _LEVEL, _RAW)
    size = _HEAD.size + len(category) + len(packed) + _TAIL.size
    head = _HEAD.pack(_GZIP, 12 + len(category), _MARK, 8 + len(category), size, block.lines)
    return b"".join((head, category, packed, _TAIL.pack(isal_zlib.crc32(data), len(data) & 0xFFFFFFFF)))


def unpack(member: Member) -> bytes:
    checksum, size = _TAIL.unpack_from(member.packed, len(member.packed) - _TAIL.size)
    begin = _HEAD.size + len(member.category)
    try:
        data = isal_zlib.decompress(memoryview(member.packed)[begin : -_TAIL.size], _RAW)
    except isal_zlib.error as error:  # type: ignore[misc]
        raise DamagedMember(str(error)) from None
    if len(data) & 0xFFFFFFFF != size or isal_zlib.crc32(data) != checksum or data.count(b"\n") != member.lines:
        raise DamagedMember("wrong checksum")
    return data


def members(path: Path, damage: Damage, *, data: bool = True) -> Iterator[Member]:
    """Every whole member of a file, beginning anew after what is damaged."""
    with path.open("rb", buffering=_READ) as file:
        yield from members_between(file, 0, os.fstat(file.fileno()).st_size, damage, data=data)


def members_between(file: BinaryIO, start: int, end: int, damage: Damage, *, data: bool) -> Iterator[Member]:
    while start < end:
        member = _member_at(file, start, end, data=data)
        if member is None:
            start = _next_beginning(file, start, end, damage)
        else:
            yield member
            start += member.size


def checked(path: Path, damage: Damage) -> Iterator[tuple[Member, bytes]]:
    """Every member whose bytes are what was written, with its lines."""
    end = path.stat().st_size
    for member in members(path, damage):
        try:
            yield member, unpack(member)
        except DamagedMember:
            if member.start + member.size == end:
                damage.torn += 1
            else:
                damage.note(member.packed, member.lines)


def _member_at(file: BinaryIO, start: int, end: int, *, data: bool) -> Member | None:
    """None when no whole member begins here."""
    file.seek(start)
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    gzip, extra, mark, own, size, lines = _HEAD.unpack(head)
    if gzip != _GZIP or mark != _MARK or own < 8 or extra != own + 4 or start + size > end:
        return None
    category = file.read(own - 8)
    rest = size - _HEAD.size - len(category)
    if rest < _TAIL.size or not _CATEGORY.match(category):
        return None
    if data:
        packed = head + category + file.read(rest)
        if len(packed) < size:
            return None
    else:
        packed = b""
    file.seek(start + size - 4)
    raw = int.from_bytes(file.read(4), "little")
    return Member(category.decode(), lines, start, packed, size, raw)


def _next_beginning(file: BinaryIO, start: int, end: int, damage: Damage) -> int:
    """Where the next whole member is; what is left out on the way is noted. With none, it is the end that was torn."""
    file.seek(start)
    sample = file.read(_SHOWN)
    here = start
    while (found := _find_beginning(file, here + 1)) is not None:
        if _member_at(file, found, end, data=False):
            damage.note(sample)
            return found
        here = found
    if _is_torn(sample):
        damage.torn += 1
    else:
        damage.note(sample)
    return end


def _find_beginning(file: BinaryIO, here: int) -> int | None:
    overlap = b""
    file.seek(here)
    while chunk := file.read(_READ):
        if match := _BEGINNING.search(overlap + chunk):
            return here - len(overlap) + match.start()
        here += len(chunk)
        overlap = (overlap + chunk)[-len(_GZIP) - 4 :]
    return None


def _is_torn(tail: bytes) -> bool:
    """The beginning of a member, or zeros where one would have been."""
    return not tail.strip(b"\0") or tail.startswith(_GZIP) or _GZIP.startswith(tail[: len(_GZIP)])
