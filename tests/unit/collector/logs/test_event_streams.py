"""Open events are in the packs within a flush, folded from there, and forgotten when stored as objects."""

import asyncio
import gzip
import json
import random
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rayhistory.collector.logs.event_streams import EventStreams
from rayhistory.collector.logs.pack_series import BuiltPack, PackSeries
from rayhistory.collector.spool.block import Block
from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.collector.spool.segment import Segment
from rayhistory.collector.spool.spool import Spool
from rayhistory.events.row_buffer import RowBuffer
from rayhistory.index.fold.sources import SourceKind, list_sources
from rayhistory.packs.pack_directory import PackDirectory
from rayhistory.packs.pack_reader import PackReader
from rayhistory.sessions import Layout
from rayhistory.sessions.records import NodeSeal
from rayhistory.storage import Store, open_store
from support.folding import (
    NODE,
    RECORDED,
    RECORDED_LOSSES,
    REF,
    as_lines,
    fold_session,
    portions_of,
    put,
    rows,
    settings_for,
    tables,
)

LAYOUT = Layout()
PREFIX = LAYOUT.node_packs_prefix(REF, NODE)


class EventNode:
    """A spool, a store, and the packs between them."""

    def __init__(self, home: Path, spool: Spool, store: Store) -> None:
        self.logs = home / "logs"
        self.spool = spool
        self.store = store
        self.series = PackSeries(self.logs, PackDirectory(), events=EventStreams(spool, REF.session))

    async def post(self, events: list[dict[str, Any]], category: str = "job_events/01000000") -> None:
        await self.spool.append({REF.session: [Block(category, len(events), as_lines(events))]})

    async def flush(self) -> list[BuiltPack]:
        packs = []
        has_more = True
        while has_more and (pack := self.series.build()):
            await self.store.put(f"{PREFIX}/{pack.name}", pack.data)
            packs.append(pack)
            has_more = pack.has_more
        return packs

    async def rotate(self) -> Segment:
        await self.spool.rotate()
        (segment,) = self.spool.segments()
        return segment

    async def upload(self, segment: Segment) -> None:
        """Upload a segment as one object."""
        key = LAYOUT.events_key(REF, NODE, "node_events", segment.created_ns, compressed=True)
        await self.store.put(key, segment.path)
        await self.spool.discard(segment, segment.events)

    async def restart(self) -> None:
        reader = await self.reader()
        self.series = PackSeries(
            self.logs, reader.directory, reader.newest_number, EventStreams(self.spool, REF.session)
        )

    async def reader(self) -> PackReader:
        reader = PackReader(self.store, PREFIX)
        await reader.refresh()
        return reader

    async def streams(self) -> dict[str, bytes]:
        reader = await self.reader()
        return {name: await reader.read_stream(stream, 0, 1 << 40) for name, stream in reader.event_streams.items()}


def run(home: Path, *processes: Callable[[EventNode], Awaitable[None]], budget: int = 10**9) -> None:
    """Run collector processes one after the other, with the same spool and store."""

    async def run_process(work: Callable[[EventNode], Awaitable[None]]) -> None:
        (home / "logs").mkdir(exist_ok=True)
        (home / "store").mkdir(exist_ok=True)
        store = open_store(settings_for(home / "store"), writable=True)
        spool = Spool(PrivateDirectory(home / "spool"), budget=budget, segment_size=budget // 10, segment_age=3600)
        await spool.open()
        await spool.assign_node(REF.session, NODE)
        node = EventNode(home, spool, store)
        await node.restart()
        await work(node)
        await spool.close()

    for process in processes:
        asyncio.run(run_process(process))


def make_events(numbers: range) -> list[dict[str, Any]]:
    return [{"eventId": str(number), "sessionName": REF.session} for number in numbers]


def event_ids(data: bytes) -> list[int]:
    return [int(json.loads(line)["eventId"]) for line in gzip.decompress(data).splitlines()]


def test_one_flush_ships_logs_and_new_events_in_one_object(tmp_path: Path) -> None:
    """Each flush ships the new bytes, and there is no pack without any."""

    async def work(node: EventNode) -> None:
        (node.logs / "a.log").write_text("a line\n")
        await node.post(make_events(range(3)))
        assert len(await node.flush()) == 1
        assert await node.flush() == []
        await node.post(make_events(range(3, 5)), "node_events")
        assert len(await node.flush()) == 1
        segment = node.spool.open_segment(REF.session)
        assert segment
        assert await node.streams() == {f"{segment.created_ns}.wal": segment.path.read_bytes()}
        assert event_ids(segment.path.read_bytes()) == [0, 1, 2, 3, 4]
        reader = await node.reader()
        assert list(reader.files) == ["a.log"]

    run(tmp_path, work)


def test_stream_is_forgotten_when_its_events_are_stored_as_objects(tmp_path: Path) -> None:
    """The spool remembers the uploaded segment until a pack has recorded that."""

    async def work(node: EventNode) -> None:
        await node.post(make_events(range(3)))
        await node.flush()
        segment = await node.rotate()
        assert await node.flush() == []
        assert len(await node.streams()) == 1
        await node.upload(segment)
        assert node.spool.uploaded_segments(REF.session) == {segment.created_ns}
        assert len(await node.flush()) == 1
        assert await node.streams() == {}
        assert await node.flush() == []
        assert node.spool.uploaded_segments(REF.session) == set()

    run(tmp_path, work)


def test_streams_of_a_killed_collector_are_forgotten_by_the_next(tmp_path: Path) -> None:
    """Cover kills before and after the upload of the segment."""

    async def first(node: EventNode) -> None:
        await node.post(make_events(range(3)))
        await node.flush()
        await node.upload(await node.rotate())
        await node.post(make_events(range(3, 6)))
        await node.flush()

    async def second(node: EventNode) -> None:
        assert len(await node.streams()) == 1
        await node.upload(await node.rotate())
        await node.post(make_events(range(6, 9)))
        await node.flush()
        (stream,) = (await node.streams()).values()
        assert event_ids(stream) == [6, 7, 8]

    async def killed_after_upload(node: EventNode) -> None:
        await node.upload(await node.rotate())

    async def last(node: EventNode) -> None:
        assert len(await node.streams()) == 1
        await node.flush()
        assert await node.streams() == {}

    run(tmp_path, first, second, killed_after_upload, last)


def test_collector_without_its_spool_keeps_earlier_streams(tmp_path: Path) -> None:
    """The stream may be the only copy of these events."""

    async def first(node: EventNode) -> None:
        await node.post(make_events(range(3)))
        await node.flush()

    async def second(node: EventNode) -> None:
        await node.post(make_events(range(3, 6)))
        await node.flush()
        await node.upload(await node.rotate())
        await node.flush()
        (stream,) = (await node.streams()).values()
        assert event_ids(stream) == [0, 1, 2]

    run(tmp_path, first)
    shutil.rmtree(tmp_path / "spool")
    run(tmp_path, second)


def test_stream_of_a_vanished_segment_is_kept(tmp_path: Path) -> None:
    """Its objects are not complete."""

    async def work(node: EventNode) -> None:
        await node.post(make_events(range(3)))
        await node.flush()
        segment = await node.rotate()
        segment.path.unlink()
        await node.spool.discard(segment, 0, complete=False)
        await node.flush()
        (stream,) = (await node.streams()).values()
        assert event_ids(stream) == [0, 1, 2]

    run(tmp_path, work)


@pytest.mark.slow
def test_many_events_go_in_packs_of_bounded_size_with_whole_members(tmp_path: Path) -> None:
    """A flush ends, however fast events arrive."""

    async def work(node: EventNode) -> None:
        dice = random.Random(1)
        noise = [{"eventId": str(n), "pad": dice.randbytes(30_000).hex()} for n in range(10)]
        for _ in range(30):
            await node.post(noise)
        packs = 0
        while pack := node.series.build():
            assert len(pack.data) < 4 << 20
            await node.store.put(f"{PREFIX}/{pack.name}", pack.data)
            packs += 1
            (stream,) = (await node.streams()).values()
            assert len(event_ids(stream)) % 10 == 0
            if not pack.has_more:
                break
            await node.post(noise)
        assert packs > 3
        segment = node.spool.open_segment(REF.session)
        assert segment
        remaining = segment.size - len(stream)
        assert 0 < remaining < segment.size // 3
        assert len(await node.flush()) == 1

    run(tmp_path, work)


# The fold


@pytest.mark.slow
def test_events_in_packs_and_in_objects_fold_to_the_same_tables(tmp_path: Path) -> None:
    async def work(node: EventNode) -> None:
        await node.post(RECORDED)
        await node.flush()

    run(tmp_path, work)
    put(tmp_path / "other", 0, as_lines(RECORDED))
    here, other = fold_session(tmp_path / "store"), fold_session(tmp_path / "other")
    assert tables(tmp_path / "store", here) == tables(tmp_path / "other", other)


@pytest.mark.slow
def test_fold_reads_only_bytes_added_to_a_stream(tmp_path: Path) -> None:
    """Events that became objects since are folded without counting twice."""
    events = [*RECORDED, {"eventId": "malformed", "eventType": "TASK_DEFINITION_EVENT", "timestamp": "never"}]

    async def work(node: EventNode) -> None:
        await node.post(events[:50])
        await node.flush()
        first = await asyncio.to_thread(fold_session, tmp_path / "store")
        await node.post(events[50:])
        await node.flush()
        second = await asyncio.to_thread(fold_session, tmp_path / "store")
        assert (first.events, second.events) == (50, len(events))
        assert (second.counts.tasks, second.counts.gaps > 0) == (23, True)
        await node.upload(await node.rotate())
        await node.flush()
        sources = await list_sources(node.store, LAYOUT, REF)
        assert [source.kind for source in sources] == [SourceKind.EVENTS]
        third = await asyncio.to_thread(fold_session, tmp_path / "store")
        assert (third.counts.tasks, third.counts.gaps) == (23, second.counts.gaps)

    run(tmp_path, work)


def test_stream_forgotten_during_the_fold_is_not_a_gap(tmp_path: Path) -> None:
    """It is read as of the listed pack. If that pack is gone too, the next fold finds the events in an object."""

    async def work(node: EventNode) -> None:
        await node.post(RECORDED)
        await node.flush()
        listed = await list_sources(node.store, LAYOUT, REF)
        await node.spool.rotate()
        await node.spool.discard(node.spool.segments()[0], 1)
        await node.flush()
        (source,) = listed
        assert source.kind is SourceKind.PACKED_EVENTS
        assert await list_sources(node.store, LAYOUT, REF) == []
        assert sum([count async for count, _ in portions_of(node.store, source, RowBuffer())]) == len(RECORDED)
        buffer = RowBuffer()
        await node.store.delete(f"{LAYOUT.node_packs_prefix(REF, NODE)}/{source.pack}")
        assert sum([count async for count, _ in portions_of(node.store, source, buffer)]) == 0
        assert buffer.rows("gaps") == []

    run(tmp_path, work)


def test_late_events_are_reported_and_do_not_count_as_lost(tmp_path: Path) -> None:
    """They are a gap without a source, because nothing is missing."""
    put(tmp_path, 0, as_lines(RECORDED))
    path = tmp_path / LAYOUT.node_seal_key(REF, NODE)
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.json.encode(NodeSeal(NODE, 1, received=10, stored=10, late=3)))
    manifest = fold_session(tmp_path)
    gaps = rows(tmp_path, manifest, "SELECT source, detail, count FROM gaps WHERE kind = 'events_late'")
    assert gaps == [("", f"node {NODE}", 3)]
    assert manifest.counts.gaps == RECORDED_LOSSES
