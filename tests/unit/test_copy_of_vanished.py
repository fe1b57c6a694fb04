"""A session whose collector was killed is in packs only; a copy without packs has all of it."""

import asyncio
from pathlib import Path

from test_collector_process import NODE, SESSION, FakeRay, eventually, home, ray, running  # noqa: F401 - fixtures

import kept
from folding import RECORDED
from rayhistory.layout import Layout, SessionRef
from rayhistory.layout.packread import PackReader
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
