"""Packs reach the store through outages, cancellation and node id changes."""

import asyncio
from pathlib import Path

import pytest

from rayhistory.errors import StoreUnavailable
from support.log_shipping import FAIL, HANG, LOSE_RESPONSE, LogNode, background, run_on_node


def test_appended_bytes_are_stored_within_a_flush(tmp_path: Path) -> None:
    async def work(node: LogNode) -> None:
        async with background(node.pack_shipper().run()):
            node.append("a.log", "one\n")
            await node.wait_until_packed("a.log", "one")
            node.append("a.log", "two\n")
            node.append("sub/b.log", "three\n")
            await node.wait_until_packed("sub/b.log", "three")
            await node.wait_until_packed("a.log", "one\ntwo\n")

    run_on_node(tmp_path, work)


@pytest.mark.parametrize("fault", [FAIL, LOSE_RESPONSE])
def test_outage_delays_packs_and_loses_nothing(tmp_path: Path, fault: str) -> None:
    """The same object is uploaded again, so that nothing is stored twice."""

    async def work(node: LogNode) -> None:
        node.append("a.log", "one\n")
        node.store.faults = [fault, FAIL, fault]
        shipper = node.pack_shipper()
        async with background(shipper.flush(max_delay=0.01)) as flush:
            node.append("a.log", "two\n")
            await flush
        await shipper.flush()
        assert await node.packed_files() == {"a.log": "one\ntwo\n"}
        assert len(set(node.store.puts)) <= 2
        assert b'upload_retries_total{kind="logs"} 3.0' in node.telemetry.exposition()

    run_on_node(tmp_path, work)


def test_shipper_waits_for_a_store_that_cannot_be_listed_at_the_start(tmp_path: Path) -> None:
    """An outage must not look like a node without packs: everything would be sent again."""

    async def work(node: LogNode) -> None:
        node.append("a.log", "one\n")
        await node.pack_shipper().flush()
        (tmp_path / "store").rename(tmp_path / "away")
        (tmp_path / "store").write_text("in the way")
        list_folder = node.store.list_folder

        async def raise_unavailable(prefix: str) -> None:
            raise StoreUnavailable("unavailable")

        node.store.list_folder = raise_unavailable  # type: ignore[method-assign,assignment]
        async with background(node.pack_shipper().flush(max_delay=0.02)) as flush:
            await asyncio.sleep(0.1)
            (tmp_path / "store").unlink()
            (tmp_path / "away").rename(tmp_path / "store")
            node.store.list_folder = list_folder  # type: ignore[method-assign]
            await flush
        assert len(node.store.puts) == 1

    run_on_node(tmp_path, work)


def test_pack_of_a_cancelled_flush_is_sent_first(tmp_path: Path) -> None:
    """At the end, the session collector cancels the loop and then finishes: a built pack keeps its bytes."""

    async def work(node: LogNode) -> None:
        node.append("a.log", "one\n")
        node.store.faults = [HANG]
        shipper = node.pack_shipper()
        async with background(shipper.run()):
            await asyncio.sleep(0.3)
        node.append("a.log", "two\n")
        assert shipper.unshipped() == ["a.log"]
        await shipper.finish()
        assert shipper.unshipped() == []
        assert await node.packed_files() == {"a.log": "one\ntwo\n"}

    run_on_node(tmp_path, work)


def test_restarted_raylet_with_a_new_node_id_gets_its_own_packs(tmp_path: Path) -> None:
    """The files are complete under either id."""

    async def work(node: LogNode) -> None:
        node.append("a.log", "one\n")
        shipper = node.pack_shipper()
        await shipper.flush()
        node.node_id = "ab" * 28
        node.append("a.log", "two\n")
        await shipper.flush()
        assert await node.packed_files() == {"a.log": "one\n"}
        assert await node.packed_files("ab" * 28) == {"a.log": "one\ntwo\n"}

    run_on_node(tmp_path, work)
