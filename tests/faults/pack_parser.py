"""A strict parser for log packs, written from the format's description. Shares no code with the project.

Unreadable data, and bytes that no range covers, are errors.
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
class StoredStream:
    """One stream: the content of one log file while it only grew."""

    name: str
    kind: int
    content: bytes


def read_streams(node: Path) -> list[StoredStream]:
    """Read all streams of a node from its newest pack and the packs that it refers to."""
    names = sorted(str(path.relative_to(node)) for path in node.glob("*/*.pack"))
    return _PackParser(node).streams(names[-1]) if names else []


class _PackParser:
    def __init__(self, node: Path) -> None:
        self._node = node
        self._frames: dict[tuple[str, int], bytes] = {}

    def streams(self, newest: str) -> list[StoredStream]:
        (_, _, _, (base, at, size), changed, removed, _, ranges) = self._tail(newest)
        base = base or newest
        (unchanged, _, segments, groups) = self._directory(base, at, size)
        grouped = [self._directory(pack or base, begin, length)[0] for (pack, begin, length), *_ in groups]
        found = {stream[0]: stream for stream in [*unchanged, *changed]}
        for number in removed:
            found.pop(number, None)
        contents = {number: bytearray(stream[4]) for number, stream in found.items()}
        covered = {number: bytearray(stream[4]) for number, stream in found.items()}
        for (pack, begin, length), *_ in [*itertools.chain(*grouped), *segments]:
            self._apply(self._directory(pack or base, begin, length), pack or base, contents, covered)
        self._apply(ranges, newest, contents, covered)
        for number, stream in found.items():
            assert all(covered[number]), f"{self._node}: bytes of {stream[1]} are missing from all packs"
        return [StoredStream(stream[1], stream[2], bytes(contents[number])) for number, stream in sorted(found.items())]

    def _tail(self, name: str) -> Any:
        """Read a pack's tail. The pack's name has the size of the pack, and of tail plus footer."""
        data = (self._node / name).read_bytes()
        _, size, end_size = name.rpartition("/")[2].removesuffix(".pack").split("-")
        assert len(data) == int(size), f"{name} has another size than its name says"
        assert data.startswith(b"RHPACK1\n")
        end = data[-int(end_size) :]
        crc, length, _, magic = _FOOTER.unpack(end[-_FOOTER.size :])
        tail = end[: -_FOOTER.size]
        assert (magic, length, crc) == (b"RHPACK1E", len(tail), zlib.crc32(tail)), f"{name} has a damaged tail"
        return msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(tail))

    def _directory(self, pack: str, at: int, size: int) -> Any:
        data = (self._node / pack).read_bytes()[at : at + size]
        return msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(data))

    def _apply(self, ranges: Any, own: str, contents: dict[int, bytearray], covered: dict[int, bytearray]) -> None:
        """Copy ranges into the contents. Ranges come oldest first, and newer ones win where they overlap."""
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
