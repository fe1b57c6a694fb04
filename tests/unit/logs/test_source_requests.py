"""Reading a log file costs few requests in sequence, because each waits for the store."""

import asyncio
from pathlib import Path

import pytest

from rayhistory.logs.source import CombinedLogs, PackLogs, object_logs
from rayhistory.packs.pack_reader import PackCache
from rayhistory.sessions import Layout
from support.folding import NODE, REF
from support.packed_node import PackedNode
from support.request_rounds import RoundsStore

LAYOUT = Layout()


def packed_logs(directory: Path, flushes: int) -> tuple[RoundsStore, CombinedLogs, bytes]:
    """Store a node's packs, with the content of one of its files; return the logs with an empty cache."""
    node = PackedNode(directory)
    store = RoundsStore(directory / "store")
    for _ in range(flushes):
        node.append("raylet.out", lines=3)
        node.append("gcs_server.out", lines=1)
        while pack := node.series.build(final=True):
            path = directory / "store" / LAYOUT.node_packs_prefix(REF, NODE) / pack.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(pack.data)
    logs = CombinedLogs(*object_logs(store, LAYOUT, REF), PackLogs(store, LAYOUT, REF, PackCache()))
    return store, logs, (directory / "logs/raylet.out").read_bytes()


@pytest.mark.parametrize(("flushes", "rounds"), [(10, 4), (200, 5)])
def test_first_page_of_a_packed_log_takes_few_requests_in_sequence(tmp_path: Path, flushes: int, rounds: int) -> None:
    """List, newest tail, root, frames; before an older checkpoint also its leaf. Later pages: leaf and frames."""
    store, logs, content = packed_logs(tmp_path, flushes)

    async def work() -> None:
        assert await logs.read(NODE, "raylet.out", 0, 100) == content[:100]
        assert store.rounds <= rounds, store.requests
        store.reset()
        end = len(content) // 2
        assert await logs.read(NODE, "raylet.out", end - 100, end) == content[end - 100 : end]
        assert store.rounds <= 2, store.requests

    asyncio.run(work())


def test_whole_log_behind_many_checkpoints_is_read_in_few_rounds(tmp_path: Path) -> None:
    store, logs, content = packed_logs(tmp_path, 400)
    assert asyncio.run(logs.read(NODE, "raylet.out", 0, len(content))) == content
    assert len([what for _, what in store.requests if what.startswith("get ")]) > 20
    assert store.rounds <= 7, "leaves and frames are fetched side by side"


def test_log_stored_as_an_object_takes_a_listing_and_a_read(tmp_path: Path) -> None:
    store = RoundsStore(tmp_path)
    path = tmp_path / LAYOUT.logs_prefix(REF, NODE) / "raylet.out"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"line\n" * 100)
    logs = CombinedLogs(*object_logs(store, LAYOUT, REF), PackLogs(store, LAYOUT, REF, PackCache()))
    assert asyncio.run(logs.read(NODE, "raylet.out", 5, 10)) == b"line\n"
    assert store.rounds <= 2, store.requests
