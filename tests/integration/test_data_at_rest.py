"""A collector drains the spool that a killed collector of release 0.1.0 left."""

import json
from pathlib import Path
from typing import Any

from support.collector_process import FakeRay, eventually, running_collector
from support.store_0_1_0 import NODE, VANISHED, extract, posted_events


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


def test_ended_sessions_of_0_1_0_stay_as_they_are(home: Path, ray: FakeRay) -> None:
    store = extract("store", home)
    extract("spool", home)
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file() and VANISHED not in str(path)}
    with running_collector(home, "--role=Head") as collector:
        eventually(lambda: list(collector.store.rglob(f"seals/**/{VANISHED}/{NODE}.json")))
        ray.stop()
        assert collector.terminate() == 0
    assert {path: path.read_bytes() for path in before} == before
