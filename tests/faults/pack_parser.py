"""Packs of logs, read as their description says and with nothing of the project's code.

Here nothing is passed over: whatever cannot be read, or is not covered by any range, is an error.
"""

import itertools
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import zstandard

LOG, EVENTS = 0, 1
_FOOTER = struct.Struct("<III8s")


@dataclass
class Stored:
    """A stream: what one file held while it only grew."""

    name: str
    kind: int
    content: bytes


def read_streams(node: Path) -> list[Stored]:
    """All streams of a node, as the newest of its packs and what that refers to tell."""
    names = sorted(str(path.relative_to(node)) for path in node.glob("*/*.pack"))
    return _Packs(node).streams(names[-1]) if names else []


class _Packs:
    def __init__(self, node: Path) -> None:
        self._node = node
        self._frames: dict[tuple[str, int], bytes] = {}

    def streams(self, newest: str) -> list[Stored]:
        (_, _, _, (base, at, size), changed, forgotten, _, ranges) = self._tail(newest)
        base = base or newest
        (known, _, segments, groups) = self._directory(base, at, size)
        grouped = [self._directory(place or base, begin, length)[0] for (place, begin, length), *_ in groups]
        found = {stream[0]: stream for stream in [*known, *changed]}
        for number in forgotten:
            found.pop(number, None)
        contents = {number: bytearray(stream[4]) for number, stream in found.items()}
        covered = {number: bytearray(stream[4]) for number, stream in found.items()}
        for (place, begin, length), *_ in [*itertools.chain(*grouped), *segments]:
            self._lay(self._directory(place or base, begin, length), place or base, contents, covered)
        self._lay(ranges, newest, contents, covered)
        for number, stream in found.items():
            assert all(covered[number]), f"{self._node}: bytes of {stream[1]} are in no pack"
        return [Stored(stream[1], stream[2], bytes(contents[number])) for number, stream in sorted(found.items())]

    def _tail(self, name: str) -> Any:
        """Its place is in the name: the size of the pack, and of its tail and footer."""
        data = (self._node / name).read_bytes()
        _, size, end_size = name.rpartition("/")[2].removesuffix(".pack").split("-")
        assert len(data) == int(size), f"{name} is not as long as it says"
        assert data.startswith(b"RHPACK1\n")
        end = data[-int(end_size) :]
        crc, length, _, magic = _FOOTER.unpack(end[-_FOOTER.size :])
        tail = end[: -_FOOTER.size]
        assert (magic, length, crc) == (b"RHPACK1E", len(tail), zlib.crc32(tail)), f"{name} has a damaged end"
        return msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(tail))

    def _directory(self, pack: str, at: int, size: int) -> Any:
        data = (self._node / pack).read_bytes()[at : at + size]
        return msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(data))

    def _lay(self, ranges: Any, own: str, contents: dict[int, bytearray], covered: dict[int, bytearray]) -> None:
        """Where ranges overlap, the newer counts: they come oldest first."""
        for stream, start, piece in self._pieces(ranges, own):
            if stream in contents:
                raw = piece[: max(0, len(contents[stream]) - start)]
                contents[stream][start : start + len(raw)] = raw
                covered[stream][start : start + len(raw)] = b"\1" * len(raw)

    def _pieces(self, ranges: Any, own: str) -> Iterator[tuple[int, int, bytes]]:
        packs, frame_packs, ats, sizes, raws, streams, starts, lengths, frames, insides = ranges
        for stream, start, length, frame, inside in zip(streams, starts, lengths, frames, insides, strict=True):
            raw = self._frame(packs[frame_packs[frame]] or own, ats[frame], sizes[frame])
            assert len(raw) == raws[frame]
            yield stream, start, raw[inside : inside + length]

    def _frame(self, pack: str, at: int, size: int) -> bytes:
        if (pack, at) not in self._frames:
            data = (self._node / pack).read_bytes()[at : at + size]
            self._frames[pack, at] = zstandard.ZstdDecompressor().decompress(data)
        return self._frames[pack, at]
