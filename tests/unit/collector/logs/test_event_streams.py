"""Events on their way with the packs: there within a flush, folded, and forgotten when they have their own objects."""

import asyncio
import gzip
import json
import random
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from folding import NODE, RECORDED, REF, as_lines, fold_session, put, rows, settings_for, tables
from rayhistory.collector.block import Block
from rayhistory.collector.eventstreams import EventStreams
from rayhistory.collector.packs import PackSeries, Sealed
from rayhistory.collector.segment import Segment
from rayhistory.collector.spool import Spool
from rayhistory.events.columns import Rows
from rayhistory.index.read import read_source
from rayhistory.index.sources import Kind, list_sources
from rayhistory.layout import Layout
from rayhistory.layout.packread import PackReader
from rayhistory.layout.packs import Catalog
from rayhistory.layout.records import NodeSeal
from rayhistory.storage import Store, open_store

LAYOUT = Layout()
PREFIX = LAYOUT.node_packs_prefix(REF, NODE)


class Node:
    """A spool, a store, and the packs between them."""

    def __init__(self, home: Path, spool: Spool, store: Store) -> None:
        self.logs = home / "logs"
        self.spool = spool
        self.store = store
        self.series = PackSeries(self.logs, Catalog(), events=EventStreams(spool, REF.session))

    async def post(self, events: list[dict[str, Any]], category: str = "job_events/01000000") -> None:
        await self.spool.append({REF.session: [Block(category, len(events), as_lines(events))]})

    async def flush(self) -> list[Sealed]:
        packs = []
        more = True
        while more and (sealed := self.series.make()):
            await self.store.put(f"{PREFIX}/{sealed.name}", sealed.data)
            packs.append(sealed)
            more = sealed.more
        return packs

    async def rotate(self) -> Segment:
        await self.spool.rotate()
        (segment,) = self.spool.segments()
        return segment

    async def upload(self, segment: Segment) -> None:
        """As one object, which is enough here."""
        key = LAYOUT.events_key(REF, NODE, "node_events", segment.created_ns, compressed=True)
        await self.store.put(key, segment.path)
        await self.spool.discard(segment, segment.events)

    async def restart(self) -> None:
        reader = await self.reader()
        self.series = PackSeries(self.logs, reader.catalog, reader.newest, EventStreams(self.spool, REF.session))

    async def reader(self) -> PackReader:
        reader = PackReader(self.store, PREFIX)
        await reader.refresh()
        return reader

    async def streams(self) -> dict[str, bytes]:
        reader = await self.reader()
        return {name: await reader.read_stream(stream, 0, 1 << 40) for name, stream in reader.events.items()}


def run(home: Path, *lives: Callable[[Node], Awaitable[None]], budget: int = 10**9) -> None:
    """Each life is that of one collector process; the spool and the store stay."""

    async def live(work: Callable[[Node], Awaitable[None]]) -> None:
        (home / "logs").mkdir(exist_ok=True)
        (home / "store").mkdir(exist_ok=True)
        store = open_store(settings_for(home / "store"), writable=True)
        spool = Spool(home / "spool", budget=budget, segment_size=budget // 10, segment_age=3600)
        await spool.open()
        await spool.name_node(REF.session, NODE)
        node = Node(home, spool, store)
        await node.restart()
        await work(node)
        await spool.shut()

    for life in lives:
        asyncio.run(live(life))


def named(numbers: range) -> list[dict[str, Any]]:
    return [{"eventId": str(number), "sessionName": REF.session} for number in numbers]


def ids(data: bytes) -> list[int]:
    return [int(json.loads(line)["eventId"]) for line in gzip.decompress(data).splitlines()]


def test_a_flush_takes_logs_and_new_events_in_one_object(tmp_path: Path) -> None:
    """What is acknowledged is off the node; each flush brings what was added, and nothing when there is nothing."""

    async def work(node: Node) -> None:
        (node.logs / "a.log").write_text("a line\n")
        await node.post(named(range(3)))
        assert len(await node.flush()) == 1
        assert await node.flush() == []
        await node.post(named(range(3, 5)), "node_events")
        assert len(await node.flush()) == 1
        segment = node.spool.open_segment(REF.session)
        assert segment
        assert await node.streams() == {f"{segment.created_ns}.wal": segment.path.read_bytes()}
        assert ids(segment.path.read_bytes()) == [0, 1, 2, 3, 4]
        reader = await node.reader()
        assert list(reader.names) == ["a.log"]

    run(tmp_path, work)


def test_a_stream_is_forgotten_when_its_objects_are_there(tmp_path: Path) -> None:
    """And the note that they are is kept until the packs say so."""

    async def work(node: Node) -> None:
        await node.post(named(range(3)))
        await node.flush()
        segment = await node.rotate()
        assert await node.flush() == []
        assert len(await node.streams()) == 1
        await node.upload(segment)
        assert node.spool.stored(REF.session) == {segment.created_ns}
        assert len(await node.flush()) == 1
        assert await node.streams() == {}
        assert await node.flush() == []
        assert node.spool.stored(REF.session) == set()

    run(tmp_path, work)


def test_what_a_killed_collector_had_in_packs_is_forgotten_by_the_next(tmp_path: Path) -> None:
    """Whether it was killed before or after the upload."""

    async def first(node: Node) -> None:
        await node.post(named(range(3)))
        await node.flush()
        await node.upload(await node.rotate())
        await node.post(named(range(3, 6)))
        await node.flush()

    async def second(node: Node) -> None:
        assert len(await node.streams()) == 1
        await node.upload(await node.rotate())
        await node.post(named(range(6, 9)))
        await node.flush()
        (stream,) = (await node.streams()).values()
        assert ids(stream) == [6, 7, 8]

    async def killed_after_the_upload(node: Node) -> None:
        await node.upload(await node.rotate())

    async def last(node: Node) -> None:
        assert len(await node.streams()) == 1
        await node.flush()
        assert await node.streams() == {}

    run(tmp_path, first, second, killed_after_the_upload, last)


def test_without_its_spool_a_collector_keeps_what_is_in_packs(tmp_path: Path) -> None:
    """The stream is all that is left of these events: nobody has confirmed that they are elsewhere."""

    async def first(node: Node) -> None:
        await node.post(named(range(3)))
        await node.flush()

    async def second(node: Node) -> None:
        await node.post(named(range(3, 6)))
        await node.flush()
        await node.upload(await node.rotate())
        await node.flush()
        (stream,) = (await node.streams()).values()
        assert ids(stream) == [0, 1, 2]

    run(tmp_path, first)
    shutil.rmtree(tmp_path / "spool")
    run(tmp_path, second)


def test_a_segment_that_was_damaged_or_vanished_is_kept_in_packs(tmp_path: Path) -> None:
    """What the store got of it is not all there was."""

    async def work(node: Node) -> None:
        await node.post(named(range(3)))
        await node.flush()
        segment = await node.rotate()
        segment.path.unlink()
        await node.spool.discard(segment, 0, whole=False)
        await node.flush()
        (stream,) = (await node.streams()).values()
        assert ids(stream) == [0, 1, 2]

    run(tmp_path, work)


def test_many_events_go_in_packs_of_bounded_size_that_end_with_whole_members(tmp_path: Path) -> None:
    """And a flush ends, however fast events come."""

    async def work(node: Node) -> None:
        dice = random.Random(1)
        noise = [{"eventId": str(n), "pad": dice.randbytes(30_000).hex()} for n in range(10)]
        for _ in range(30):
            await node.post(noise)
        packs = 0
        while sealed := node.series.make():
            assert len(sealed.data) < 4 << 20
            await node.store.put(f"{PREFIX}/{sealed.name}", sealed.data)
            packs += 1
            (stream,) = (await node.streams()).values()
            assert len(ids(stream)) % 10 == 0
            if not sealed.more:
                break
            await node.post(noise)
        assert packs > 3
        segment = node.spool.open_segment(REF.session)
        assert segment
        left = segment.size - len(stream)
        assert 0 < left < segment.size // 3
        assert len(await node.flush()) == 1

    run(tmp_path, work)


# The fold


def test_events_in_packs_are_folded_like_those_in_objects(tmp_path: Path) -> None:
    async def work(node: Node) -> None:
        await node.post(RECORDED)
        await node.flush()

    run(tmp_path, work)
    put(tmp_path / "other", 0, as_lines(RECORDED))
    here, other = fold_session(tmp_path / "store"), fold_session(tmp_path / "other")
    assert tables(tmp_path / "store", here) == tables(tmp_path / "other", other)


def test_only_what_was_added_to_a_stream_is_read_again(tmp_path: Path) -> None:
    """And what has become an object since is folded without a trace of having been read before."""
    events = [*RECORDED, {"eventId": "odd", "eventType": "TASK_DEFINITION_EVENT", "timestamp": "never"}]

    async def one_process(node: Node) -> None:
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
        assert [source.kind for source in sources] == [Kind.EVENTS]
        third = await asyncio.to_thread(fold_session, tmp_path / "store")
        assert (third.counts.tasks, third.counts.gaps) == (23, second.counts.gaps)

    run(tmp_path, one_process)


def test_a_stream_that_was_forgotten_while_it_was_looked_at_is_no_gap(tmp_path: Path) -> None:
    """Its events are in an object, which the next fold finds."""

    async def work(node: Node) -> None:
        await node.post(RECORDED)
        await node.flush()
        listed = await list_sources(node.store, LAYOUT, REF)
        await node.spool.rotate()
        await node.spool.discard(node.spool.segments()[0], 1)
        await node.flush()
        (source,) = listed
        assert source.kind is Kind.PACKED_EVENTS
        assert await list_sources(node.store, LAYOUT, REF) == []
        found = Rows()
        assert sum([count async for count, _ in read_source(node.store, source, found)]) == 0
        assert found.rows("gaps") == []

    run(tmp_path, work)


def test_what_came_after_the_seal_is_told_and_is_no_loss(tmp_path: Path) -> None:
    """In the session's gaps, without a source: nothing is missing."""
    put(tmp_path, 0, as_lines(RECORDED))
    path = tmp_path / LAYOUT.node_seal_key(REF, NODE)
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.json.encode(NodeSeal(NODE, 1, received=10, stored=10, late=3)))
    manifest = fold_session(tmp_path)
    found = rows(tmp_path, manifest, "SELECT source, detail, count FROM gaps WHERE kind LIKE '%after the seal%'")
    assert found == [("", f"node {NODE}", 3)]
    assert manifest.counts.gaps == 2, "tasks of which Ray sent no definition"
