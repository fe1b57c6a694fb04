"""Plain copies of sessions whose collector was killed, and which are stored in packs only."""

import asyncio
import gzip
from pathlib import Path

import pytest

from rayhistory.archive.copy import SessionCopy
from rayhistory.collector.logs.event_streams import EventStreams
from rayhistory.collector.logs.pack_series import PackSeries
from rayhistory.collector.spool.block import Block
from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.collector.spool.quarantine import Quarantine
from rayhistory.collector.spool.spool import Spool
from rayhistory.collector.spool.upload import Uploader
from rayhistory.collector.telemetry import Telemetry
from rayhistory.packs.pack_directory import PackDirectory
from rayhistory.packs.pack_reader import PackReader
from rayhistory.sessions import Layout, SessionRef
from rayhistory.storage.local import LocalStore
from support import archived_sessions
from support.collector_process import NODE, SESSION, FakeRay, eventually, running_collector
from support.folding import RECORDED

REF = SessionRef("default", "test", SESSION)


def events_in_packs(store: Path) -> int:
    async def work() -> int:
        reader = PackReader(LocalStore(store), Layout().node_packs_prefix(REF, NODE))
        await reader.refresh()
        return sum(stream.size for stream in reader.event_streams.values())

    return asyncio.run(work())


def test_plain_copy_has_packed_events_and_logs(
    home: Path, ray: FakeRay, tmp_path: Path
) -> None:  # fmt: skip
    with running_collector(home, "--role=Head", "--log-interval=1s") as collector:
        ray.start()
        eventually(lambda: any(key.endswith(".pack") for key in collector.stored_keys()))
        assert collector.post([event | {"sessionName": SESSION} for event in RECORDED]).status_code == 200
        eventually(lambda: events_in_packs(collector.store))
        collector.kill()
        assert not [key for key in collector.stored_keys() if "_events/" in key]
        location, target = (
            archived_sessions.directory(collector.store),
            archived_sessions.directory(tmp_path / "target"),
        )
        done = archived_sessions.rayhistory(
            location, "copy", "default/test", "--to", target.url, "--log-layout", "plain", "--vanished-after", "1ms"
        )
        assert done.returncode == 0, done.stderr
    copied = target.objects()
    assert not [key for key in copied if key.endswith(".pack")]
    assert copied[Layout().log_key(REF, NODE, "raylet.out")] == b"hello from the raylet\n"
    indexed = archived_sessions.rayhistory(target, "index", RAYHISTORY_CACHE_DIR=str(tmp_path / "cache"))
    assert f"{REF.path}  generation 1:" in indexed.stdout
    assert "23 tasks" in indexed.stdout


@pytest.mark.parametrize("compressed", [True, False])
def test_packed_events_do_not_replace_complete_objects(tmp_path: Path, *, compressed: bool) -> None:
    """The node vanished after the upload of the object, and before its removal from the packs."""
    layout, store, target = Layout(), LocalStore(tmp_path / "store"), LocalStore(tmp_path / "target")
    telemetry = Telemetry()

    def block(numbers: range) -> dict[str, list[Block]]:
        data = b"".join(b'{"eventId": "%d", "sessionName": "%s"}\n' % (n, SESSION.encode()) for n in numbers)
        return {SESSION: [Block("node_events", len(numbers), data)]}

    async def work() -> None:
        spool = Spool(PrivateDirectory(tmp_path / "spool"), budget=10**9, segment_size=10**8, segment_age=300)
        uploader = Uploader(
            spool=spool, store=store, layout=layout, ref_of=lambda session: REF, telemetry=telemetry,
            quarantine=Quarantine(PrivateDirectory(tmp_path / "quarantine"), telemetry), compressed=compressed,
        )  # fmt: skip
        await spool.open()
        await spool.assign_node(SESSION, NODE)
        await spool.append(block(range(10)))
        pack = PackSeries(None, PackDirectory(), -1, EventStreams(spool, SESSION)).build()
        assert pack
        await store.put(f"{layout.node_packs_prefix(REF, NODE)}/{pack.name}", pack.data)
        await spool.append(block(range(10, 100)))
        await spool.rotate()
        await uploader.drain(SESSION)
        await spool.close()
        await SessionCopy(REF, (store, layout), (target, layout), tmp_path, lambda done, total: None).run(
            [], plain=True
        )

    asyncio.run(work())
    found = [path.read_bytes() for path in (tmp_path / "target").rglob("*.jsonl*")]
    (lines,) = [gzip.decompress(data) if compressed else data for data in found]
    assert lines.count(b"\n") == 100
