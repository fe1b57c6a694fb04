"""Closed segments become KubeRay's objects: the right keys, the right bytes, and no way to lose any."""

import asyncio
import gzip
import json
import os
import random
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from faults.disks import used
from rayhistory.collector.block import Block, pack
from rayhistory.collector.metrics import Metrics
from rayhistory.collector.segment import Segment
from rayhistory.collector.setaside import SetAside
from rayhistory.collector.split import split
from rayhistory.collector.spool import Spool, SpoolError
from rayhistory.collector.upload import Uploader
from rayhistory.errors import StoreUnavailable
from rayhistory.layout import Layout, SessionRef
from rayhistory.storage.local import LocalStore

SESSION = "session_2026-11-15_19-18-08_055078_15551"
NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"
KUBERAY_EVENT_FILE = re.compile(r"-\d{4}-\d{2}-\d{2}-\d{2}(-\d+)?(\.jsonl)?(\.gz)?$")


class FlakyStore(LocalStore):
    """A real store with outages: the first writes fail, some of them after the object is there."""

    def __init__(self, directory: Path, failures: int) -> None:
        super().__init__(directory)
        self.failures = failures
        self.failure: Exception = StoreUnavailable("the store is away")
        self.spool = directory.parent / "spool"
        self.most = 0
        """Bytes that were on the spool's disk during an upload."""

    async def put(self, key: str, data: bytes | Path) -> None:
        self.most = max(self.most, used(self.spool))
        if self.failures > 0:
            self.failures -= 1
            if self.failures % 2:
                await super().put(key, data)
            raise self.failure
        await super().put(key, data)


class Place:
    def __init__(self, directory: Path, *, failures: int = 0, compressed: bool = True, budget: int = 10**9) -> None:
        self.directory = directory
        self.metrics = Metrics()
        self.spool = Spool(
            directory / "spool", budget=budget, segment_size=10**8, segment_age=300, unpacked=not compressed
        )
        self.store = FlakyStore(directory / "store", failures)
        self.uploader = Uploader(
            spool=self.spool,
            store=self.store,
            layout=Layout(),
            ref_of=lambda session: SessionRef("default", "test", session),
            aside=SetAside(directory / "set-aside", self.metrics),
            metrics=self.metrics,
            compressed=compressed,
        )

    def objects(self) -> dict[str, bytes]:
        store = self.directory / "store"
        return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def at(place: Place, use: Callable[[Place], Awaitable[None]]) -> Place:
    async def session() -> None:
        await place.spool.open()
        await use(place)
        await place.uploader.stop()
        await place.spool.shut()

    asyncio.run(session())
    return place


async def fill_and_drain(place: Place) -> None:
    blocks = [
        Block("node_events", 1, b'{"a":1}\n'),
        Block("job_events/01000000", 1, b'{"a":2}\n'),
        Block("snapshots", 1, b'{"a":3}\n'),
        Block("node_events", 1, b'{"a":4}\n'),
    ]
    await place.spool.append({SESSION: blocks})
    await place.spool.name_node(SESSION, NODE)
    await place.spool.rotate()
    await place.uploader.drain()


def test_a_segment_becomes_one_object_per_category(tmp_path: Path) -> None:
    """Under KubeRay's names, in the order of arrival, and the segment is gone."""
    place = at(Place(tmp_path), fill_and_drain)
    history = f"cluster-history/raycluster/default/test/{SESSION}/{NODE}"
    found = {str(Path(key).parent): gzip.decompress(data) for key, data in place.objects().items()}
    assert found == {
        f"{history}/node_events": b'{"a":1}\n{"a":4}\n',
        f"{history}/job_events/01000000": b'{"a":2}\n',
        f"ray-history/snapshots/default/test/{SESSION}": b'{"a":3}\n',
    }
    for key in place.objects():
        assert KUBERAY_EVENT_FILE.search(key)
        assert Path(key).name.startswith(f"{NODE}-")
        assert key.endswith(".jsonl.gz")
    assert not list((tmp_path / "spool").rglob("*.wal"))
    assert not (tmp_path / "spool" / SESSION).exists()
    assert place.spool.bytes == 0
    assert place.spool.counts(SESSION)[:2] == (3, 3)


def test_without_compression_objects_are_plain(tmp_path: Path) -> None:
    """And their names say so."""
    place = at(Place(tmp_path, compressed=False), fill_and_drain)
    assert b'{"a":1}\n{"a":4}\n' in place.objects().values()
    assert all(key.endswith(".jsonl") for key in place.objects())


def test_a_failing_store_is_tried_until_it_answers(tmp_path: Path) -> None:
    """The segment stays until every part is confirmed, and repeats write the same objects."""
    place = at(Place(tmp_path, failures=5), fill_and_drain)
    assert len(place.objects()) == 3
    assert not list((tmp_path / "spool").rglob("*.wal"))


def test_a_segment_waits_until_its_node_is_known(tmp_path: Path) -> None:
    """Nothing is filed under a node that nobody knows yet."""

    async def use(place: Place) -> None:
        await place.spool.append({SESSION: [Block("node_events", 1, b'{"a":1}\n')]})
        await place.spool.rotate()
        await place.uploader.drain()
        assert place.objects() == {}
        await place.spool.name_node(SESSION, NODE)
        await place.uploader.drain()
        assert len(place.objects()) == 1

    at(Place(tmp_path), use)


def write_segment(path: Path, blocks: list[Block], *, trusted: bool = False) -> Segment:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(pack, blocks)))
    segment = Segment.found(path)
    assert segment
    segment.trusted = trusted
    return segment


@pytest.mark.parametrize("trusted", [True, False])
def test_bytes_depend_on_the_segment_alone(tmp_path: Path, trusted: bool) -> None:
    """Split again after a crash, at another time and place, it gives the same objects."""
    blocks = [Block(f"job_events/{n % 3:02d}", 1, b'{"n":%d}\n' % n) for n in range(1000)]
    segment = write_segment(tmp_path / "5-n.wal", blocks, trusted=trusted)
    outcomes = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        parts, _ = split(segment, tmp_path / name, compressed=True)
        outcomes.append([(part.category, part.lines, part.path.read_bytes()) for part in parts])
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("compressed", [True, False])
def test_more_jobs_than_files_can_be_open_at_once(tmp_path: Path, compressed: bool) -> None:
    """A thousand short jobs in one segment are a thousand objects."""
    blocks = [Block(f"job_events/{n % 500:04d}", 1, b'{"n":%d}\n' % n) for n in range(1000)]
    segment = write_segment(tmp_path / "5-n.wal", blocks)
    (tmp_path / "parts").mkdir()
    parts, damage = split(segment, tmp_path / "parts", compressed=compressed)
    assert len(parts) == 500
    contents = [part.path.read_bytes() for part in parts]
    lines = [(gzip.decompress(data) if compressed else data).splitlines() for data in contents]
    assert all(part.lines == len(each) == 2 for part, each in zip(parts, lines, strict=True))
    assert (damage.torn, damage.lost) == (0, 0)


def test_small_and_large_batches_are_both_kept_in_order(tmp_path: Path) -> None:
    """Small ones are put together, large ones are copied: the lines are the same."""
    dice = random.Random(3)
    blocks, expected = [], []
    for n in range(60):
        lines = [b'{"n":%d,"m":%d}' % (n, m) for m in range(dice.choice([1, 3, 8000]))]
        expected += lines
        blocks.append(Block("node_events", len(lines), b"\n".join(lines) + b"\n"))
    for trusted in (True, False):
        segment = write_segment(tmp_path / f"{trusted:d}.wal", blocks, trusted=trusted)
        directory = tmp_path / str(trusted)
        directory.mkdir()
        (part,), _ = split(segment, directory, compressed=True)
        packed = part.path.read_bytes()
        assert gzip.decompress(packed).splitlines() == expected
        assert part.lines == len(expected)


def test_a_spool_file_can_be_read_with_gzip(tmp_path: Path) -> None:
    """Somebody who looks into the spool with plain tools sees events."""
    segment = write_segment(tmp_path / "5.wal", [Block("node_events", 1, b'{"a":1}\n'), Block("snapshots", 1, b"{}\n")])
    assert gzip.decompress(segment.path.read_bytes()) == b'{"a":1}\n{}\n'


def test_damaged_records_are_set_aside_and_the_rest_is_stored(tmp_path: Path) -> None:
    """A bad sector costs what was in it, and is counted."""
    one, two = pack(Block("node_events", 1, b'{"a":1}\n')), pack(Block("node_events", 1, b'{"a":2}\n'))
    path = tmp_path / "spool" / SESSION / f"5-{NODE}.wal"
    path.parent.mkdir(parents=True)
    path.write_bytes(one + b"rubbish" + two + one[:20])

    async def use(place: Place) -> None:
        await place.uploader.drain()

    place = at(Place(tmp_path), use)
    assert [gzip.decompress(data) for data in place.objects().values()] == [b'{"a":1}\n{"a":2}\n']
    assert len(list((tmp_path / "set-aside").iterdir())) == 1
    assert place.metrics.lost == 1


def test_a_spool_file_that_vanished_is_counted_as_lost(tmp_path: Path) -> None:
    """Somebody cleaned up too well: it is said, and nothing waits for ever."""

    async def use(place: Place) -> None:
        await place.spool.append({SESSION: [Block("node_events", 2, b"{}\n{}\n")]})
        await place.spool.name_node(SESSION, NODE)
        await place.spool.rotate()
        place.spool.segments()[0].path.unlink()
        await place.uploader.drain()
        await place.spool.note(bad=0, lost=place.metrics.lost)
        counts = place.spool.counts(SESSION)
        assert (counts.received, counts.stored, counts.lost) == (2, 0, 2)

    at(Place(tmp_path), use)


def test_a_store_that_raises_file_not_found_costs_no_segment(tmp_path: Path) -> None:
    """A file of the store's own that is missing, such as a token, is not the spool's."""
    place = Place(tmp_path, failures=1)
    place.store.failure = FileNotFoundError(2, "No such file or directory", "token")
    at(place, fill_and_drain)
    assert len(place.objects()) == 3
    assert place.metrics.lost == 0


def test_files_made_for_uploads_stay_within_their_share_of_the_disk(tmp_path: Path) -> None:
    """Two large segments are not split at the same time when there is no room for both."""

    async def use(place: Place) -> None:
        order: list[str] = []

        async def upload(name: str, size: int) -> None:
            async with place.spool.room_for_upload(size):
                order.append(f"{name} begins")
                await asyncio.sleep(0.01)
                order.append(f"{name} ends")

        await asyncio.gather(upload("a", 200_000_000), upload("b", 200_000_000), upload("c", 10))
        assert order.index("a ends") < order.index("b begins")
        assert order.index("c begins") < order.index("a ends")

    at(Place(tmp_path), use)


def bulky(lines: int, *, random_text: bool) -> Block:
    dice = random.Random(lines)
    texts = [dice.randbytes(5000).hex() if random_text else "x" * 10_000 for _ in range(lines)]
    return Block("node_events", lines, b"".join(b'{"a":"%s"}\n' % text.encode() for text in texts))


@pytest.mark.parametrize("at_once", [True, False])
def test_uploads_that_are_not_compressed_keep_to_the_disk_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """However many events came while the disk was slow, or in one body: their lines are far larger than the spool."""
    budget = 4 * 10**6
    sync = os.fdatasync

    async def use(place: Place) -> None:
        monkeypatch.setattr(os, "fdatasync", lambda descriptor: (time.sleep(0.1), sync(descriptor)))
        await place.spool.append({SESSION: [bulky(1, random_text=False)]})
        monkeypatch.undo()
        posts = [bulky(250, random_text=False)] if at_once else [bulky(25, random_text=False)] * 10
        await asyncio.gather(*(place.spool.append({SESSION: [block]}) for block in posts))
        with pytest.raises(SpoolError):
            while True:
                await place.spool.append({SESSION: [bulky(20, random_text=True)]})
        await place.spool.name_node(SESSION, NODE)
        await place.spool.rotate()
        await place.uploader.drain()

    place = at(Place(tmp_path, compressed=False, budget=budget), use)
    assert place.store.most <= budget
    assert sum(data.count(b"\n") for data in place.objects().values()) == place.spool.counts(SESSION).stored > 251


@pytest.mark.parametrize(("compressed", "arrays"), [(True, False), (False, False), (False, True)])
def test_parts_in_memory_are_what_files_would_be(tmp_path: Path, compressed: bool, arrays: bool) -> None:
    """An upload that began with files may go on without them."""
    blocks = [Block(f"job_events/{n % 100:04d}", 1, b'{"n":%d}\n' % n) for n in range(1000)]
    segment = write_segment(tmp_path / "5-n.wal", [*blocks, Block("snapshots", 1, b"{}\n")])
    (tmp_path / "parts").mkdir()
    files, _ = split(segment, tmp_path / "parts", compressed=compressed, arrays=arrays)
    parts, _ = split(segment, None, compressed=compressed, arrays=arrays)
    assert [(each.category, each.lines, each.path.read_bytes()) for each in files] == [
        (each.category, each.lines, each.content) for each in parts
    ]
    assert [each.size for each in files] == [each.size for each in parts]
    assert len(parts) == 101


def test_arrays_are_made_without_a_second_copy_on_disk(tmp_path: Path) -> None:
    """For KubeRay's v1.6: there is room for one. What we ask the dashboard stays lines, for only we read it."""
    blocks = [Block("node_events", 2, b'{"n":1}\n{"n":2}\n'), Block("node_events", 1, b'{"n":3}\n')]
    segment = write_segment(tmp_path / "5-n.wal", [*blocks, Block("snapshots", 2, b"{}\n{}\n")])
    (tmp_path / "parts").mkdir()
    parts, _ = split(segment, tmp_path / "parts", compressed=False, arrays=True)
    events, snapshots = (part.path.read_bytes() for part in parts)
    assert json.loads(events) == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert snapshots == b"{}\n{}\n"
    assert used(tmp_path / "parts") <= segment.raw + segment.events + 2
