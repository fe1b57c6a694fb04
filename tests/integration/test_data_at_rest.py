"""A collector drains the spool that a killed collector of release 0.1.0 left."""

import json
from pathlib import Path
from typing import Any

from rayhistory.collector.spool.block import Block, compress_block
from support.collector_process import SESSION, FakeRay, eventually, running_collector
from support.store_0_1_0 import NODE, VANISHED, extract, posted_events

UNKNOWN = "session_2026-11-01_00-00-00_000000_1"


def event_id(event: dict[str, Any]) -> str:
    return str(event["eventId"])


def test_spool_of_0_1_0_is_drained_into_the_store(home: Path, ray: FakeRay) -> None:
    extract("store", home)
    spool = extract("spool", home) / "test_default"
    quarantined = {path.name: path.read_bytes() for path in (spool / "set-aside").iterdir()}
    with running_collector(home, "--role=Head") as collector:
        seal = eventually(lambda: list(collector.store.rglob(f"seals/**/{VANISHED}/{NODE}.json")))[0]
        counts = json.loads(seal.read_text())
        ray.stop()
        assert collector.terminate() == 0
    stored = [event for event in collector.stored_events() if event["sessionName"] == VANISHED]
    assert sorted(stored, key=event_id) == sorted(posted_events(VANISHED), key=event_id)
    assert counts["received"] == counts["stored"] == len(stored)
    assert counts["set_aside"] == 2
    assert not list(spool.rglob("*.wal"))
    assert {path.name: path.read_bytes() for path in (spool / "set-aside").iterdir()} == quarantined


def test_spool_of_0_1_0_in_rays_directory_is_drained_into_the_store(home: Path, ray: FakeRay) -> None:
    """The spool lies elsewhere now. Files that a job has put there since are not taken over."""
    extract("store", home)
    old = extract("spool", home).rename(home / "event-data") / "test_default"
    quarantined = {path.name: path.read_bytes() for path in (old / "set-aside").iterdir()}
    with running_collector(home, "--role=Head") as collector:
        seal = eventually(lambda: list(collector.store.rglob(f"seals/**/{VANISHED}/{NODE}.json")))[0]
        counts = json.loads(seal.read_text())
        ray.stop()
        assert collector.terminate() == 0
        stored = [event for event in collector.stored_events() if event["sessionName"] == VANISHED]
        assert sorted(stored, key=event_id) == sorted(posted_events(VANISHED), key=event_id)
        assert counts["received"] == counts["stored"] == len(stored)
        assert counts["set_aside"] == 2
        assert {path.name for path in old.iterdir()} <= {"lock", "set-aside", "exports", "leftovers"}
        assert {path.name: path.read_bytes() for path in (collector.spool / "set-aside").iterdir()} == quarantined

        forged = old / UNKNOWN / f"7-{NODE}.wal"
        forged.parent.mkdir()
        forged.write_bytes(compress_block(Block("node_events", 1, b"{}\n")))
        collector.start()
        assert collector.terminate() == 0
    assert forged.exists()
    assert not any(UNKNOWN in key for key in collector.stored_keys())


def test_session_that_0_1_0_has_ended_comes_back_if_ray_runs(home: Path, ray: FakeRay) -> None:
    """The upgrade restarted the collector. The ledger of 0.1.0 has only the seal."""
    records = home / "store/ray-history/sessions/default/test" / SESSION
    records.mkdir(parents=True)
    start = {"namespace": "default", "cluster": "test", "session": SESSION, "started_ms": 1000}
    (records / "start.json").write_text(json.dumps(start))
    (records / "end.json").write_text('{"ended_ms": 2000}')
    spool = home / "spool" / "test_default"
    spool.mkdir(parents=True)
    (spool / "counts.json").write_text(
        json.dumps({"sessions": {SESSION: {"received": 5, "stored": 5, "sealed": True}}})
    )
    ray.start()
    with running_collector(home, "--role=Head"):
        eventually((records / "alive").exists)
        eventually(lambda: not (records / "end.json").exists())


def test_ended_sessions_of_0_1_0_stay_as_they_are(home: Path, ray: FakeRay) -> None:
    store = extract("store", home)
    extract("spool", home)
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file() and VANISHED not in str(path)}
    with running_collector(home, "--role=Head") as collector:
        eventually(lambda: list(collector.store.rglob(f"seals/**/{VANISHED}/{NODE}.json")))
        ray.stop()
        assert collector.terminate() == 0
    assert {path: path.read_bytes() for path in before} == before
