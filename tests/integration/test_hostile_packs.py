"""Hostile packs in the store: they damage only what they contain."""

import asyncio
import gzip
from pathlib import Path

import pytest
import zstandard

from rayhistory.archive.copy import SessionCopy
from rayhistory.errors import StoreError
from rayhistory.events.row_buffer import RowBuffer
from rayhistory.index.fold.sources import list_sources
from rayhistory.packs.file_names import files_by_name
from rayhistory.packs.pack_directory import PackDirectory
from rayhistory.packs.pack_format import (
    EVENTS,
    GONE,
    LOG,
    Compressor,
    DirectoryCoverage,
    DirectoryLocation,
    DirectoryRoot,
    DirectoryTail,
    Frame,
    PackDamaged,
    Range,
    Stream,
    encode_pack_end,
    pack_name,
    to_columns,
    unpack_directory,
)
from rayhistory.packs.pack_reader import PackReader
from rayhistory.sessions import Layout
from rayhistory.storage.local import LocalStore
from support.folding import NODE, RECORDED, as_lines, portions_of
from support.folding import REF as FOLDED

LAYOUT = Layout()
COMPRESSOR = Compressor()


def write(directory: Path, key: str, data: bytes) -> None:
    path = directory / "store" / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _tail(number: int, base: DirectoryLocation, streams: list[Stream] = [], ranges: list[Range] = []) -> DirectoryTail:  # noqa: B006
    return DirectoryTail(number, 9, "", base, streams, [], {}, to_columns(ranges))


def _put_pack(directory: Path, number: int, tail: DirectoryTail, *parts: bytes, prefix: str = "p") -> str:
    begin, end = b"".join(parts), encode_pack_end(COMPRESSOR.directory(tail))
    name = pack_name(number, len(begin) + len(end), len(end))
    path = directory / prefix / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(begin + end)
    return name


def _open(directory: Path) -> PackReader:
    reader = PackReader(LocalStore(directory), "p")
    asyncio.run(reader.refresh())
    return reader


def _read(directory: Path, name: str, start: int, end: int) -> bytes:
    async def work() -> bytes:
        reader = PackReader(LocalStore(directory), "p")
        await reader.refresh()
        return await reader.read(name, start, end)

    return asyncio.run(work())


def test_root_in_a_later_pack_ends_the_search(tmp_path: Path) -> None:
    later = pack_name(7, 500, 100)
    for number in range(3):
        _put_pack(
            tmp_path, number, _tail(number, DirectoryLocation(later, 0, 10), [Stream(number, f"{number}.log", size=1)])
        )
    assert "2.log" in _open(tmp_path).files


def test_search_through_packs_without_roots_ends(tmp_path: Path) -> None:
    for number in range(400):
        _put_pack(
            tmp_path, number, _tail(number, DirectoryLocation("", 0, 10), [Stream(number, f"{number}.log", size=1)])
        )
    assert "399.log" in _open(tmp_path).files


def test_inconsistent_coverage_is_damage(tmp_path: Path) -> None:
    root = DirectoryRoot(
        [Stream(1, "a.log", size=100)], {}, [DirectoryCoverage(DirectoryLocation("", 0, 1), "", [1, 1, 1], [0], [])]
    )
    packed = COMPRESSOR.directory(root)
    _put_pack(tmp_path, 0, _tail(0, DirectoryLocation("", 0, len(packed)), [Stream(1, "a.log", size=100)]), packed)
    assert len(_read(tmp_path, "a.log", 0, 100)) == 100


FRAMES = {
    "another node": Frame("../q/000000000/000000000000-100-50.pack", 0, 50, 100),
    "another file": Frame("../../secret", 0, 50, 100),
    "an absolute path": Frame("/etc/passwd", 0, 50, 100),
    "before the beginning": Frame("", -50, 50, 100),
    "a negative size": Frame("", 0, -50, 100),
    "after the end": Frame("", 2**62, 50, 100),
    "a huge size": Frame("", 0, 2**62, 100),
    "a huge uncompressed size": Frame("", 0, 50, 2**62),
    "a NUL": Frame("\0", 0, 50, 100),
}


@pytest.mark.parametrize("name", FRAMES)
def test_pack_directory_cannot_refer_to_other_files(tmp_path: Path, name: str) -> None:
    """A reference to another file is damage of its bytes, and not an outage."""
    frame = COMPRESSOR.frame(b"secret\n" * 20)
    for path in ("secret", "q/000000000/000000000000-100-50.pack"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(frame)
    streams = [Stream(1, "a.log", size=100), Stream(2, "b.log", size=2**62)]
    good = Range(2, 0, 100, Frame("", 0, len(COMPRESSOR.frame(b"line\n" * 20)), 100), 0)
    _put_pack(
        tmp_path,
        0,
        _tail(0, DirectoryLocation("", 0, 1), streams, [Range(1, 0, 100, FRAMES[name], 0), good]),
        COMPRESSOR.frame(b"line\n" * 20),
    )
    assert b"damaged in the store" in _read(tmp_path, "a.log", 0, 100)
    assert _read(tmp_path, "b.log", 0, 100) == b"line\n" * 20
    assert len(_read(tmp_path, "b.log", 2**61, 2**61 + 1000)) == 1000


@pytest.mark.parametrize(("offset", "length"), [(50, 100), (-50, 100), (2**62, 100), (0, 2**40)])
def test_range_outside_its_frame_keeps_its_length(tmp_path: Path, offset: int, length: int) -> None:
    frame = COMPRESSOR.frame(b"line\n" * 20)
    found = Range(1, 0, length, Frame("", 0, len(frame), 100), offset)
    _put_pack(tmp_path, 0, _tail(0, DirectoryLocation("", 0, 1), [Stream(1, "a.log", size=length)], [found]), frame)
    assert len(_read(tmp_path, "a.log", 0, 200)) == min(length, 200)


HUGE = 2**50
STORED_BYTES = {
    "nothing": b"",
    "a line": b"line\n",
    "some events": gzip.compress(as_lines(RECORDED[:1])),
}


def _put_huge_stream(directory: Path, kind: int, name: str, data: bytes, length: int | None = None) -> None:
    """Write a pack that claims a stream of a petabyte, and holds little of it."""
    frame = COMPRESSOR.frame(data)
    found = Range(1, 0, length or len(data), Frame("", 0, len(frame), len(data)), 0)
    tail = _tail(0, DirectoryLocation("", 0, 1), [Stream(1, name, kind, size=HUGE)], [found])
    _put_pack(directory, 0, tail, frame, prefix=LAYOUT.node_packs_prefix(FOLDED, NODE))


@pytest.mark.parametrize("stored", STORED_BYTES)
def test_reading_a_claimed_stream_of_events_ends(tmp_path: Path, stored: str) -> None:
    _put_huge_stream(tmp_path, EVENTS, "1794770300000000000.wal", STORED_BYTES[stored])
    found = RowBuffer()

    async def work() -> None:
        store = LocalStore(tmp_path)
        (source,) = await list_sources(store, LAYOUT, FOLDED)
        async for _ in portions_of(store, source, found):
            pass

    asyncio.run(work())
    assert [row[1] for row in found.rows("gaps")] == [
        "object_truncated" if stored == "some events" else "packed_events_damaged"
    ]


@pytest.mark.parametrize("length", [None, HUGE])
@pytest.mark.parametrize(("kind", "name"), [(EVENTS, "1794770300000000000.wal"), (LOG, "raylet.out")])
def test_copy_leaves_out_claimed_streams(tmp_path: Path, kind: int, name: str, length: int | None) -> None:
    source, target = LocalStore(tmp_path / "store"), LocalStore(tmp_path / "target")
    _put_huge_stream(tmp_path / "store", kind, name, b"line\n", length)
    write(tmp_path, LAYOUT.log_key(FOLDED, NODE, "other.log"), b"hello\n")
    copy = SessionCopy(FOLDED, (source, LAYOUT), (target, LAYOUT), tmp_path, lambda done, total: None)
    copied = asyncio.run(copy.run([], plain=True))
    assert (copied.objects, copied.left_out) == (1, 1)


@pytest.mark.parametrize("name", ["{0}/outside/1.wal", "../../../outside/1.wal", "\0.wal", "", "1" * 300])
def test_event_stream_name_cannot_lead_outside_the_target(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").mkdir()
    frame = COMPRESSOR.frame(b"line\n" * 20)
    stream = Stream(1, name.format(tmp_path), EVENTS, size=100)
    found = Range(1, 0, 100, Frame("", 0, len(frame), 100), 0)
    _put_pack(
        tmp_path / "a",
        0,
        _tail(0, DirectoryLocation("", 0, 1), [stream], [found]),
        frame,
        prefix=LAYOUT.node_packs_prefix(FOLDED, NODE),
    )
    stores = (LocalStore(tmp_path / "a"), LAYOUT), (LocalStore(tmp_path / "b"), LAYOUT)
    with pytest.raises(StoreError, match=r"event stream .* is not named after a time"):
        asyncio.run(SessionCopy(FOLDED, *stores, tmp_path, lambda done, total: None).run([], plain=True))
    assert not [*(tmp_path / "outside").iterdir()]


def test_many_files_of_the_same_name_are_listed_quickly() -> None:
    streams = {number: Stream(number, "a.log", state=GONE, since=number) for number in range(50_000)}
    assert len(files_by_name(PackDirectory(streams=streams))) == 50_000


def test_decompression_bomb_and_deep_nesting_are_damage() -> None:
    for raw in (b"\0" * (300 << 20), b"\x98" + b"\x91" * 500_000):
        with pytest.raises(PackDamaged):
            unpack_directory(zstandard.compress(raw), DirectoryTail)
