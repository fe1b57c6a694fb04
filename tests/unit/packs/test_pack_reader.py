"""Any range of any file is read from packs with few requests, and damage is contained."""

import asyncio
import json
import random
from pathlib import Path

import pytest

from faults.pack_parser import read_streams
from rayhistory.collector.logs import pack_series
from rayhistory.collector.logs.pack_builder import PackBuilder
from rayhistory.events.row_buffer import RowBuffer
from rayhistory.index.fold.sources import SourceKind, list_sources
from rayhistory.logs.source import PackLogs, find_file, start_of_last_lines
from rayhistory.packs.pack_format import (
    Compressor,
    DirectoryCoverage,
    DirectoryLocation,
    DirectoryRoot,
    DirectoryTail,
    PackDamaged,
    Range,
    Stream,
    decode_pack_end,
    encode_pack_end,
    pack_name,
    to_columns,
    unpack_frame,
    unpack_frame_into,
)
from rayhistory.packs.pack_reader import filler
from rayhistory.sessions import Layout, SessionRef
from support.folding import portions_of
from support.packed_node import PREFIX, PackedNode

LAYOUT = Layout()
REF = SessionRef("default", "test", "session_2026-11-15_19-18-08_055078_15551")
NODE = "ab" * 28


@pytest.fixture
def node(tmp_path: Path) -> PackedNode:
    return PackedNode(tmp_path)


# Damage


def test_truncated_pack_is_skipped_and_its_content_sent_again(node: PackedNode) -> None:
    """Its number is not used again."""
    for _ in range(3):
        node.append("a.log", 10)
        node.flush()
    newest = node.packs()[-1]
    newest.write_bytes(newest.read_bytes()[:-7])
    reader = node.reader()
    assert reader.damaged == 1
    assert reader.files["a.log"].size == 420
    node.restart()
    node.flush()
    assert node.read_all() == node.on_disk()
    assert len(node.packs()) == 4


def test_damaged_frames_are_replaced_by_filler_and_counted(node: PackedNode) -> None:
    """All other bytes keep their offsets."""
    node.append("a.log", 10)
    node.flush()
    node.append("a.log", 10)
    node.flush()
    first = node.packs()[0]
    data = bytearray(first.read_bytes())
    data[20] ^= 0xFF
    first.write_bytes(data)
    reader = node.reader()
    content = asyncio.run(reader.read("a.log", 0, 1000))
    assert content == filler(210) + node.on_disk()["a.log"][210:]
    assert reader.damaged
    first.unlink()
    content = asyncio.run(node.reader().read("a.log", 100, 1000))
    assert content == filler(110) + node.on_disk()["a.log"][210:]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_damage_never_raises(node: PackedNode, seed: int) -> None:
    """With any byte of any pack changed, or any pack truncated, every read line is right or filler."""
    dice = random.Random(seed)
    for _ in range(70):
        node.append("a.log", 3)
        node.append("b.log", 1)
        node.flush()
    path = dice.choice(node.packs())
    data = bytearray(path.read_bytes())
    if seed % 2:
        del data[dice.randrange(len(data)) :]
    else:
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)
    disk = node.on_disk()
    for name, content in node.read_all().items():
        expected = disk[name][: len(content)]
        wrong = [at for at in range(0, len(content), 21) if content[at : at + 21] != expected[at : at + 21]]
        assert len(wrong) <= 3 * 64


@pytest.mark.parametrize("data", [b"", b"x" * 100, b"\0" * 20])
def test_data_that_is_not_a_pack_raises_pack_damaged(data: bytes) -> None:
    with pytest.raises(PackDamaged):
        decode_pack_end(data)
    with pytest.raises(PackDamaged):
        unpack_frame(data, 10)


def test_large_reads_fill_a_buffer_that_is_used_again(node: PackedNode) -> None:
    """Whole frames are decompressed to their place, parts of frames are copied, and a damaged one becomes filler."""
    node.append("a.log", 15_000, width=200)
    node.flush()
    content, reader, buffer = node.on_disk()["a.log"], node.reader(), bytearray(b"left over" * 10)
    for start, end in ((0, len(content)), (700_001, 2_800_003), (0, 100), (100, 1 << 40)):
        asyncio.run(reader.read_to_buffer("a.log", start, end, buffer))
        assert buffer == content[start:end]
    (pack,) = node.packs()
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 0xFF
    pack.write_bytes(data)
    damaged = node.reader()
    asyncio.run(damaged.read_to_buffer("a.log", 0, len(content), buffer))
    assert damaged.damaged
    assert b"bytes of this log are damaged in the store]" in buffer
    assert len(buffer) == len(content)
    assert sum(a == b for a, b in zip(buffer.split(b"\n"), content.split(b"\n"), strict=False)) > 2000


@pytest.mark.parametrize("damage", ["first byte", "checksum", "size", "truncated"])
def test_frames_that_are_decompressed_in_place_are_checked(damage: str) -> None:
    frame, target = bytearray(Compressor().frame(b"text" * 1000)), bytearray(4000)
    unpack_frame_into(bytes(frame), memoryview(target))
    assert target == b"text" * 1000
    if damage == "size":
        target = bytearray(3999)
    elif damage == "truncated":
        del frame[-8:]
    else:
        frame[0 if damage == "first byte" else -1] ^= 0xFF
    with pytest.raises(PackDamaged):
        unpack_frame_into(bytes(frame), memoryview(target))


# Number of requests


@pytest.mark.slow
def test_any_range_is_found_in_three_reads(node: PackedNode) -> None:
    """After hundreds of packs: the newest tail, the root, a leaf; then the data."""
    for number in range(300):
        node.append("a.log", 20, width=200)
        node.append(f"w-{number % 40}.out", 1)
        assert node.flush() == 1
    content = node.on_disk()["a.log"]
    for start in range(0, len(content), len(content) // 7):
        node.store.reads.clear()
        reader = node.reader()
        assert asyncio.run(reader.read("a.log", start, start + 500)) == content[start : start + 500]
        assert len(node.store.reads) <= 3 + 2  # at most two frames


@pytest.mark.slow
def test_log_that_grows_by_a_line_per_flush_is_read_with_few_requests(node: PackedNode) -> None:
    """Small chunks are merged now and then; that costs a few times their size and saves most reads."""
    for number in range(1100):
        node.append("slow.log", 1)
        node.append(f"w-{number % 50}.out", 1)
        assert node.flush() == 1
    reader = node.reader()
    node.store.reads.clear()
    assert asyncio.run(reader.read("slow.log", 0, 1 << 20)) == node.on_disk()["slow.log"]
    assert len(node.store.reads) < 50
    assert node.read_all() == node.on_disk()


@pytest.mark.slow
def test_many_growing_files_do_not_cause_more_checkpoints(node: PackedNode) -> None:
    """Each checkpoint adds an entry per file to the root, which is read as a whole."""
    for _ in range(12):
        for number in range(1100):
            node.append(f"w-{number}.out", 1)
        node.flush()
    assert len(node.reader().directory.leaves) == 1
    assert node.read_all() == node.on_disk()


@pytest.fixture
def long_series(node: PackedNode, monkeypatch: pytest.MonkeyPatch) -> PackedNode:
    """A series as after weeks: many groups of leaves, by several collectors."""
    monkeypatch.setattr(pack_series, "_PACKS_PER_CHECKPOINT", 3)
    monkeypatch.setattr(pack_series, "_MAX_ROOT_PARTS", 8)
    for number in range(200):
        node.append("a.log", 5, width=200)
        node.append(f"w-{number % 20}.out", 1)
        if number % 70 == 69:
            (node.logs / f"w-{number % 20}.out").unlink()
            node.restart()
        assert node.flush() == 1
    return node


@pytest.mark.slow
def test_root_of_a_long_series_stays_small(long_series: PackedNode) -> None:
    """Old leaves are in groups, and one more read finds them."""
    directory = long_series.reader().directory
    assert len(directory.leaves) <= 4
    assert len(directory.groups) > 10
    content = long_series.read_all()
    assert {name: content[name] for name in long_series.on_disk()} == long_series.on_disk()
    streams = read_streams(long_series.home / "store" / PREFIX)
    assert sorted(stream.content for stream in streams) == sorted(content.values())
    long_series.store.reads.clear()
    assert asyncio.run(long_series.reader().read("a.log", 0, 500)) == content["a.log"][:500]
    assert len(long_series.store.reads) <= 4 + 2


@pytest.mark.slow
def test_leaves_of_a_damaged_group_are_found_in_the_root_before_it(long_series: PackedNode) -> None:
    for group in long_series.reader().directory.groups:
        location = group.location
        pack = long_series.home / "store" / PREFIX / location.pack
        data = bytearray(pack.read_bytes())
        data[location.offset : location.offset + location.size] = bytes(location.size)
        pack.write_bytes(data)
    content = long_series.read_all()
    assert {name: content[name] for name in long_series.on_disk()} == long_series.on_disk()


def test_last_thousand_lines_of_ten_gigabytes_cost_a_few_reads(node: PackedNode) -> None:
    """The directories describe 10 GB in 20,480 frames; all frames are the same one, to save disk space."""
    line = b"x" * 99 + b"\n"
    raw = line * 5000
    packs, size = 20 * 64, 10 * 2**30 // len(raw) * len(raw)
    compressor, last = Compressor(), ""
    leaves: list[DirectoryCoverage] = []
    builder = PackBuilder(compressor)
    builder.add(0, 0, raw)
    builder.finish()
    frame = builder.ranges[0].frame
    data = b"".join(builder.parts)
    per_leaf = size // len(raw) // (packs // 64) + 1

    async def read_tail() -> bytes:
        nonlocal last
        for number, first in enumerate(range(0, size // len(raw), per_leaf)):
            count = min(per_leaf, size // len(raw) - first)
            ranges = [Range(0, (first + at) * len(raw), len(raw), frame, 0) for at in range(count)]
            leaf = compressor.directory(to_columns(ranges))
            location = DirectoryLocation("", len(data), len(leaf))
            coverage = DirectoryCoverage(location, last, [0], [ranges[0].start], [ranges[-1].end])
            streams = [Stream(0, "raylet.out", size=ranges[-1].end)]
            root = compressor.directory(DirectoryRoot(streams, {}, [*leaves, coverage]))
            root_location = DirectoryLocation("", len(data) + len(leaf), len(root))
            tail = DirectoryTail(number, 1, last, root_location, [], [], {}, to_columns([]))
            end = encode_pack_end(compressor.directory(tail))
            pack = data + leaf + root + end
            last = pack_name(number, len(pack), len(end))
            coverage.location = DirectoryLocation(last, location.offset, location.size)
            leaves.append(coverage)
            await node.store.put(f"{LAYOUT.node_packs_prefix(REF, NODE)}/{last}", pack)
        node.store.reads.clear()
        logs = PackLogs(node.store, LAYOUT, REF)
        file = await find_file(logs, NODE, "raylet.out")
        assert file.size == size > 10**10
        start = await start_of_last_lines(logs, NODE, file.path, file.size, 1000)
        return await logs.read(NODE, file.path, start, file.size)

    assert asyncio.run(read_tail()) == line * 1000
    assert len(node.store.reads) <= 5
    assert sum(size for _, size in node.store.reads) < 500_000


def test_refresh_reads_only_new_tails(node: PackedNode) -> None:
    node.append("a.log")
    node.flush()
    reader = node.reader()
    node.store.reads.clear()
    asyncio.run(reader.refresh())
    assert node.store.reads == []
    node.append("a.log")
    node.flush()
    asyncio.run(reader.refresh())
    assert len(node.store.reads) == 1
    assert reader.files["a.log"].size == 42


# The fold


def test_fold_reads_event_logs_from_packs(node: PackedNode) -> None:
    """Running and vanished sessions have no plain files. An unfinished last line is left for the next fold."""
    events = node.logs / "events"
    events.mkdir()
    line = {"event_id": "1", "severity": "INFO", "message": "hello", "timestamp": "1790000000"}
    (events / "event_GCS.log").write_text(json.dumps(line) + '\n{"event_id": "2", "mess')
    (events / "other.log").write_text("x")
    pack = node.series.build()
    assert pack

    async def fold() -> list[tuple[object, ...]]:
        await node.store.put(f"{LAYOUT.node_packs_prefix(REF, NODE)}/{pack.name}", pack.data)
        (source,) = await list_sources(node.store, LAYOUT, REF)
        assert source.kind is SourceKind.PACKED_LOG
        rows = RowBuffer()
        async for _ in portions_of(node.store, source, rows):
            pass
        return rows.rows("cluster_events")

    assert [row[0] for row in asyncio.run(fold())] == ["1"]
