"""Upload of closed segments: keys, bytes, retries and damage."""

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

from faults.disks import used_bytes
from rayhistory.collector.spool.block import Block, compress_block
from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.collector.spool.quarantine import QUARANTINE_DIR, Quarantine
from rayhistory.collector.spool.segment import Segment
from rayhistory.collector.spool.segment_objects import split_segment
from rayhistory.collector.spool.spool import Spool, SpoolError
from rayhistory.collector.spool.upload import Uploader
from rayhistory.collector.telemetry import Telemetry
from rayhistory.errors import StoreUnavailable
from rayhistory.sessions import Layout, SessionRef
from rayhistory.storage.local import LocalStore

SESSION = "session_2026-11-15_19-18-08_055078_15551"
NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"
KUBERAY_EVENT_FILE = re.compile(r"-\d{4}-\d{2}-\d{2}-\d{2}(-\d+)?(\.jsonl)?(\.gz)?$")


class FlakyStore(LocalStore):
    """A real store with outages: the first writes fail, some of them after the object is stored."""

    def __init__(self, directory: Path, failures: int) -> None:
        super().__init__(directory)
        self.failures = failures
        self.failure: Exception = StoreUnavailable("store unavailable")
        self.spool = directory.parent / "spool"
        self.max_spool_bytes = 0
        """The largest disk usage of the spool during an upload."""

    async def put(self, key: str, data: bytes | Path) -> None:
        self.max_spool_bytes = max(self.max_spool_bytes, used_bytes(self.spool))
        if self.failures > 0:
            self.failures -= 1
            if self.failures % 2:
                await super().put(key, data)
            raise self.failure
        await super().put(key, data)


class UploadSetup:
    """A spool, a flaky store and the uploader between them."""

    def __init__(self, directory: Path, *, failures: int = 0, compressed: bool = True, budget: int = 10**9) -> None:
        self.directory = directory
        self.telemetry = Telemetry()
        self.spool = Spool(
            PrivateDirectory(directory / "spool"),
            budget=budget,
            segment_size=10**8,
            segment_age=300,
            uncompressed=not compressed,
        )
        self.store = FlakyStore(directory / "store", failures)
        self.uploader = Uploader(
            spool=self.spool,
            store=self.store,
            layout=Layout(),
            ref_of=lambda session: SessionRef("default", "test", session),
            quarantine=Quarantine(PrivateDirectory(directory / QUARANTINE_DIR), self.telemetry),
            telemetry=self.telemetry,
            compressed=compressed,
        )

    def objects(self) -> dict[str, bytes]:
        store = self.directory / "store"
        return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def run(setup: UploadSetup, scenario: Callable[[UploadSetup], Awaitable[None]]) -> UploadSetup:
    async def main() -> None:
        await setup.spool.open()
        await scenario(setup)
        await setup.uploader.stop()
        await setup.spool.close()

    asyncio.run(main())
    return setup


async def fill_and_drain(setup: UploadSetup) -> None:
    blocks = [
        Block("node_events", 1, b'{"a":1}\n'),
        Block("job_events/01000000", 1, b'{"a":2}\n'),
        Block("snapshots", 1, b'{"a":3}\n'),
        Block("node_events", 1, b'{"a":4}\n'),
    ]
    await setup.spool.append({SESSION: blocks})
    await setup.spool.assign_node(SESSION, NODE)
    await setup.spool.rotate()
    await setup.uploader.drain()


def test_segment_becomes_one_object_per_category(tmp_path: Path) -> None:
    """Objects have KubeRay's names and events in order of arrival; the segment is deleted."""
    setup = run(UploadSetup(tmp_path), fill_and_drain)
    history = f"cluster-history/raycluster/default/test/{SESSION}/{NODE}"
    found = {str(Path(key).parent): gzip.decompress(data) for key, data in setup.objects().items()}
    assert found == {
        f"{history}/node_events": b'{"a":1}\n{"a":4}\n',
        f"{history}/job_events/01000000": b'{"a":2}\n',
        f"ray-history/snapshots/default/test/{SESSION}": b'{"a":3}\n',
    }
    for key in setup.objects():
        assert KUBERAY_EVENT_FILE.search(key)
        assert Path(key).name.startswith(f"{NODE}-")
        assert key.endswith(".jsonl.gz")
    assert not list((tmp_path / "spool").rglob("*.wal"))
    assert not (tmp_path / "spool" / SESSION).exists()
    assert setup.spool.bytes == 0
    assert setup.spool.counts(SESSION)[:2] == (3, 3)


def test_uncompressed_objects_are_named_jsonl(tmp_path: Path) -> None:
    setup = run(UploadSetup(tmp_path, compressed=False), fill_and_drain)
    assert b'{"a":1}\n{"a":4}\n' in setup.objects().values()
    assert all(key.endswith(".jsonl") for key in setup.objects())


@pytest.mark.slow
def test_upload_is_retried_until_the_store_accepts_it(tmp_path: Path) -> None:
    """The segment stays until all its parts are stored, and retries write the same objects."""
    setup = run(UploadSetup(tmp_path, failures=5), fill_and_drain)
    assert len(setup.objects()) == 3
    assert not list((tmp_path / "spool").rglob("*.wal"))


def test_segment_is_not_uploaded_before_its_node_is_known(tmp_path: Path) -> None:

    async def scenario(setup: UploadSetup) -> None:
        await setup.spool.append({SESSION: [Block("node_events", 1, b'{"a":1}\n')]})
        await setup.spool.rotate()
        await setup.uploader.drain()
        assert setup.objects() == {}
        await setup.spool.assign_node(SESSION, NODE)
        await setup.uploader.drain()
        assert len(setup.objects()) == 1

    run(UploadSetup(tmp_path), scenario)


def write_segment(path: Path, blocks: list[Block], *, trusted: bool = False) -> Segment:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(compress_block, blocks)))
    segment = Segment.find(PrivateDirectory(path.parent), path.name)
    assert segment
    segment.trusted = trusted
    return segment


@pytest.mark.parametrize("trusted", [True, False])
def test_repeated_split_of_a_segment_makes_the_same_bytes(tmp_path: Path, trusted: bool) -> None:
    """An upload that is repeated after a crash overwrites its own objects."""
    blocks = [Block(f"job_events/{n % 3:02d}", 1, b'{"n":%d}\n' % n) for n in range(1000)]
    segment = write_segment(tmp_path / "5-n.wal", blocks, trusted=trusted)
    outcomes = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        parts, _ = split_segment(segment, PrivateDirectory(tmp_path / name), compressed=True)
        outcomes.append([(part.category, part.lines, part.path.read_bytes()) for part in parts])
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("compressed", [True, False])
def test_segment_with_more_jobs_than_open_files_is_split(tmp_path: Path, compressed: bool) -> None:
    blocks = [Block(f"job_events/{n % 500:04d}", 1, b'{"n":%d}\n' % n) for n in range(1000)]
    segment = write_segment(tmp_path / "5-n.wal", blocks)
    (tmp_path / "parts").mkdir()
    parts, damage = split_segment(segment, PrivateDirectory(tmp_path / "parts"), compressed=compressed)
    assert len(parts) == 500
    contents = [part.path.read_bytes() for part in parts]
    lines = [(gzip.decompress(data) if compressed else data).splitlines() for data in contents]
    assert all(part.lines == len(each) == 2 for part, each in zip(parts, lines, strict=True))
    assert (damage.torn, damage.lost) == (0, 0)


def test_small_and_large_blocks_stay_in_order(tmp_path: Path) -> None:
    """Small members are merged and large ones are copied; the lines are the same."""
    rng = random.Random(3)
    blocks, expected = [], []
    for n in range(60):
        lines = [b'{"n":%d,"m":%d}' % (n, m) for m in range(rng.choice([1, 3, 8000]))]
        expected += lines
        blocks.append(Block("node_events", len(lines), b"\n".join(lines) + b"\n"))
    for trusted in (True, False):
        segment = write_segment(tmp_path / f"{trusted:d}.wal", blocks, trusted=trusted)
        directory = tmp_path / str(trusted)
        directory.mkdir()
        (part,), _ = split_segment(segment, PrivateDirectory(directory), compressed=True)
        packed = part.path.read_bytes()
        assert gzip.decompress(packed).splitlines() == expected
        assert part.lines == len(expected)


def test_segment_can_be_read_with_gzip(tmp_path: Path) -> None:
    segment = write_segment(tmp_path / "5.wal", [Block("node_events", 1, b'{"a":1}\n'), Block("snapshots", 1, b"{}\n")])
    assert gzip.decompress(segment.path.read_bytes()) == b'{"a":1}\n{}\n'


def test_damaged_members_are_quarantined_and_the_rest_is_stored(tmp_path: Path) -> None:
    one, two = (
        compress_block(Block("node_events", 1, b'{"a":1}\n')),
        compress_block(Block("node_events", 1, b'{"a":2}\n')),
    )
    path = tmp_path / "spool" / SESSION / f"5-{NODE}.wal"
    path.parent.mkdir(parents=True)
    path.write_bytes(one + b"garbage" + two + one[:20])

    async def scenario(setup: UploadSetup) -> None:
        await setup.uploader.drain()

    setup = run(UploadSetup(tmp_path), scenario)
    assert [gzip.decompress(data) for data in setup.objects().values()] == [b'{"a":1}\n{"a":2}\n']
    assert len(list((tmp_path / QUARANTINE_DIR).iterdir())) == 1
    assert setup.telemetry.lost_count == 1


def test_segment_that_vanished_is_counted_as_lost(tmp_path: Path) -> None:
    """The upload ends, and does not wait for the file forever."""

    async def scenario(setup: UploadSetup) -> None:
        await setup.spool.append({SESSION: [Block("node_events", 2, b"{}\n{}\n")]})
        await setup.spool.assign_node(SESSION, NODE)
        await setup.spool.rotate()
        setup.spool.segments()[0].path.unlink()
        await setup.uploader.drain()
        await setup.spool.record_totals(quarantined=0, lost=setup.telemetry.lost_count)
        counts = setup.spool.counts(SESSION)
        assert (counts.received, counts.stored, counts.lost) == (2, 0, 2)

    run(UploadSetup(tmp_path), scenario)


def test_file_not_found_from_the_store_loses_no_segment(tmp_path: Path) -> None:
    """The missing file may be one of the store, such as a token."""
    setup = UploadSetup(tmp_path, failures=1)
    setup.store.failure = FileNotFoundError(2, "No such file or directory", "token")
    run(setup, fill_and_drain)
    assert len(setup.objects()) == 3
    assert setup.telemetry.lost_count == 0


def test_files_of_uploads_stay_within_their_disk_space(tmp_path: Path) -> None:
    """Two large segments are not split concurrently when there is no room for both."""

    async def scenario(setup: UploadSetup) -> None:
        order: list[str] = []

        async def upload(name: str, size: int) -> None:
            async with setup.spool.upload_space.reserve(size):
                order.append(f"{name} begins")
                await asyncio.sleep(0.01)
                order.append(f"{name} ends")

        await asyncio.gather(upload("a", 200_000_000), upload("b", 200_000_000), upload("c", 10))
        assert order.index("a ends") < order.index("b begins")
        assert order.index("c begins") < order.index("a ends")

    run(UploadSetup(tmp_path), scenario)


def bulky(lines: int, *, random_text: bool) -> Block:
    rng = random.Random(lines)
    texts = [rng.randbytes(5000).hex() if random_text else "x" * 10_000 for _ in range(lines)]
    return Block("node_events", lines, b"".join(b'{"a":"%s"}\n' % text.encode() for text in texts))


@pytest.mark.parametrize("one_body", [True, False])
def test_uncompressed_uploads_stay_within_the_disk_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_body: bool
) -> None:
    """The uncompressed lines, from one body or from many posts to a slow disk, are far larger than the spool."""
    budget = 4 * 10**6
    sync = os.fdatasync

    def sync_slowly(descriptor: int) -> None:
        time.sleep(0.1)
        sync(descriptor)

    async def scenario(setup: UploadSetup) -> None:
        monkeypatch.setattr(os, "fdatasync", sync_slowly)
        await setup.spool.append({SESSION: [bulky(1, random_text=False)]})
        monkeypatch.undo()
        posts = [bulky(250, random_text=False)] if one_body else [bulky(25, random_text=False)] * 10
        await asyncio.gather(*(setup.spool.append({SESSION: [block]}) for block in posts))
        with pytest.raises(SpoolError):
            while True:
                await setup.spool.append({SESSION: [bulky(20, random_text=True)]})
        await setup.spool.assign_node(SESSION, NODE)
        await setup.spool.rotate()
        await setup.uploader.drain()

    setup = run(UploadSetup(tmp_path, compressed=False, budget=budget), scenario)
    assert setup.store.max_spool_bytes <= budget
    assert sum(data.count(b"\n") for data in setup.objects().values()) == setup.spool.counts(SESSION).stored > 251


@pytest.mark.parametrize(("compressed", "arrays"), [(True, False), (False, False), (False, True)])
def test_parts_in_memory_equal_parts_in_files(tmp_path: Path, compressed: bool, arrays: bool) -> None:
    """An upload that began with files may continue in memory."""
    blocks = [Block(f"job_events/{n % 100:04d}", 1, b'{"n":%d}\n' % n) for n in range(1000)]
    segment = write_segment(tmp_path / "5-n.wal", [*blocks, Block("snapshots", 1, b"{}\n")])
    (tmp_path / "parts").mkdir()
    files, _ = split_segment(segment, PrivateDirectory(tmp_path / "parts"), compressed=compressed, arrays=arrays)
    parts, _ = split_segment(segment, None, compressed=compressed, arrays=arrays)
    assert [(each.category, each.lines, each.path.read_bytes()) for each in files] == [
        (each.category, each.lines, each.data) for each in parts
    ]
    assert [each.size for each in files] == [each.size for each in parts]
    assert len(parts) == 101


def test_arrays_are_written_without_a_second_copy_on_disk(tmp_path: Path) -> None:
    """KubeRay v1.6 reads arrays only. Dashboard responses stay JSON Lines, because KubeRay does not read them."""
    blocks = [Block("node_events", 2, b'{"n":1}\n{"n":2}\n'), Block("node_events", 1, b'{"n":3}\n')]
    segment = write_segment(tmp_path / "5-n.wal", [*blocks, Block("snapshots", 2, b"{}\n{}\n")])
    (tmp_path / "parts").mkdir()
    parts, _ = split_segment(segment, PrivateDirectory(tmp_path / "parts"), compressed=False, arrays=True)
    events, responses = (part.path.read_bytes() for part in parts)
    assert json.loads(events) == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert responses == b"{}\n{}\n"
    assert used_bytes(tmp_path / "parts") <= segment.raw_size + segment.events + 2
