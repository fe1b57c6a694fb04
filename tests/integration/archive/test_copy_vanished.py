"""A session whose collector was killed is in packs only; a copy without packs has all of it."""

import asyncio
import gzip
from pathlib import Path

import pytest
from test_collector_process import NODE, SESSION, FakeRay, eventually, home, ray, running  # noqa: F401 - fixtures

import kept
from folding import RECORDED
from rayhistory.collector.block import Block
from rayhistory.collector.eventstreams import EventStreams
from rayhistory.collector.metrics import Metrics
from rayhistory.collector.packs import PackSeries
from rayhistory.collector.setaside import SetAside
from rayhistory.collector.spool import Spool
from rayhistory.collector.upload import Uploader
from rayhistory.keeping.copying import SessionCopy
from rayhistory.layout import Layout, SessionRef
from rayhistory.layout.packread import PackReader
from rayhistory.layout.packs import Catalog
from rayhistory.storage.local import LocalStore

REF = SessionRef("default", "test", SESSION)


def events_in_packs(store: Path) -> int:
    async def work() -> int:
        reader = PackReader(LocalStore(store), Layout().node_packs_prefix(REF, NODE))
        await reader.refresh()
        return sum(stream.size for stream in reader.events.values())

    return asyncio.run(work())


def test_events_and_logs_of_a_killed_collector_become_plain_objects(
    home: Path, ray: FakeRay, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    with running(home, "--role=Head", "--log-interval=1s") as collector:
        ray.begin()
        eventually(lambda: any(key.endswith(".pack") for key in collector.stored_keys()))
        assert collector.post([event | {"sessionName": SESSION} for event in RECORDED]).status_code == 200
        eventually(lambda: events_in_packs(collector.store))
        collector.kill()
        assert not [key for key in collector.stored_keys() if "_events/" in key]
        place, target = kept.directory(collector.store), kept.directory(tmp_path / "target")
        done = kept.rayhistory(
            place, "copy", "default/test", "--to", target.url, "--log-layout", "plain", "--vanished-after", "1ms"
        )
        assert done.returncode == 0, done.stderr
    copied = target.objects()
    assert not [key for key in copied if key.endswith(".pack")]
    assert copied[Layout().log_key(REF, NODE, "raylet.out")] == b"hello from the raylet\n"
    indexed = kept.rayhistory(target, "index", RAYHISTORY_CACHE_DIR=str(tmp_path / "cache"))
    assert f"{REF.path}  generation 1:" in indexed.stdout
    assert "23 tasks" in indexed.stdout


@pytest.mark.parametrize("compressed", [True, False])
def test_the_beginning_of_an_object_in_packs_does_not_take_its_place(tmp_path: Path, *, compressed: bool) -> None:
    """The node vanished when the object was there, and the packs had not forgotten what they hold of it."""
    layout, store, target = Layout(), LocalStore(tmp_path / "store"), LocalStore(tmp_path / "target")
    metrics = Metrics()

    def block(numbers: range) -> dict[str, list[Block]]:
        data = b"".join(b'{"eventId": "%d", "sessionName": "%s"}\n' % (n, SESSION.encode()) for n in numbers)
        return {SESSION: [Block("node_events", len(numbers), data)]}

    async def work() -> None:
        spool = Spool(tmp_path / "spool", budget=10**9, segment_size=10**8, segment_age=300)
        uploader = Uploader(
            spool=spool, store=store, layout=layout, ref_of=lambda session: REF, metrics=metrics,
            aside=SetAside(tmp_path / "aside", metrics), compressed=compressed,
        )  # fmt: skip
        await spool.open()
        await spool.name_node(SESSION, NODE)
        await spool.append(block(range(10)))
        pack = PackSeries(None, Catalog(), -1, EventStreams(spool, SESSION)).make()
        assert pack
        await store.put(f"{layout.node_packs_prefix(REF, NODE)}/{pack.name}", pack.data)
        await spool.append(block(range(10, 100)))
        await spool.rotate()
        await uploader.drain(SESSION)
        await spool.shut()
        await SessionCopy(REF, (store, layout), (target, layout), tmp_path, lambda done, total: None).run(
            [], plain=True
        )

    asyncio.run(work())
    found = [path.read_bytes() for path in (tmp_path / "target").rglob("*.jsonl*")]
    (lines,) = [gzip.decompress(data) if compressed else data for data in found]
    assert lines.count(b"\n") == 100
