"""The size of a session: every layout counts, the index and other sessions do not."""

import asyncio
from pathlib import Path

from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.stored_size import stored_bytes
from rayhistory.storage.local import LocalStore

LAYOUT = Layout()
REF = SessionRef.checked("ml", "train", "session_2026-11-15_19-18-08_055078_15551", "rayjob", "nightly")
BARE = SessionRef(*REF.identity)
NODE = "ab" * 28


def test_all_objects_but_the_index_are_counted(tmp_path: Path) -> None:
    other = SessionRef("ml", "other", REF.session)
    objects = {
        LAYOUT.events_key(REF, NODE, "node_events", 1, compressed=False): 1,
        LAYOUT.log_key(REF, NODE, "raylet.out"): 10,
        LAYOUT.events_key(BARE, NODE, "node_events", 1, compressed=False): 100,
        f"{LAYOUT.node_packs_prefix(REF, NODE)}/1.pack": 1_000,
        LAYOUT.metrics_key(REF, NODE, 1): 10_000,
        LAYOUT.start_key(REF): 100_000,
        f"{LAYOUT.v1_6_logs_prefix(REF, NODE)}/raylet.out": 1_000_000,
        LAYOUT.manifest_key(REF, 1): 7,
        LAYOUT.log_key(other, NODE, "raylet.out"): 7,
        LAYOUT.start_key(other): 7,
    }
    for key, size in objects.items():
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(b"x" * size)
    assert asyncio.run(stored_bytes(LocalStore(tmp_path), LAYOUT, REF)) == 1_111_111
