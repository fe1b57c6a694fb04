"""Summaries move from the inbox into few parts; none is lost, whoever is killed and whoever else does the same."""

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rayhistory.runs import run_compaction
from rayhistory.runs.run_compaction import BATCH, RunCompactor
from rayhistory.runs.run_manifest import RunManifest, list_generations, publish_run_manifest
from rayhistory.runs.run_table import RunTable
from rayhistory.runs.session_summary import StoredSummary
from rayhistory.sessions import SessionRef
from rayhistory.storage import ObjectInfo
from rayhistory.storage.local import LocalStore
from rayhistory.storage.store import Listing
from support.generated_runs import DAY_MS, FIRST_MS, LAYOUT, announce, fleet, generated, identities, ref_of
from support.request_rounds import RoundsStore

SEEDS = int(os.environ.get("RAYHISTORY_LAWS", "1"))


def compactor(directory: Path, store: Any = None) -> tuple[LocalStore, RunTable, RunCompactor]:
    store = store or LocalStore(directory / "store")
    table = RunTable(store, LAYOUT, directory / "cache")
    return store, table, RunCompactor(table)


def keys(directory: Path, folder: str) -> list[str]:
    root = directory / "store/ray-history/runs" / folder
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def expected(*stored: StoredSummary) -> set[tuple[str, str, str]]:
    return {each.summary.identity for each in stored}


def test_announced_summary_is_visible_before_and_after_compaction(tmp_path: Path) -> None:
    store, table, runs = compactor(tmp_path)
    one = generated(status="FAILED", fingerprint="ab")

    async def work() -> None:
        await announce(store, [one])
        assert (await table.load()).summaries == {one.summary.identity: one.summary}
        assert (await runs.compact(force=True)).folded == 1
        assert (await table.load(max_age_s=0)).summaries == {one.summary.identity: one.summary}
        assert await table.details([one.summary.identity]) == {one.summary.identity: one.details}

    asyncio.run(work())
    assert keys(tmp_path, "inbox") == []
    assert len(keys(tmp_path, "parts")) == 1


def test_few_summaries_wait_for_a_batch(tmp_path: Path) -> None:
    store, _, runs = compactor(tmp_path)

    async def work() -> None:
        await announce(store, fleet(BATCH - 1, days=1))
        assert (await runs.compact()).folded == 0
        await announce(store, [generated(9_999)])
        assert (await runs.compact()).folded == BATCH

    asyncio.run(work())


def test_running_sessions_stay_in_the_inbox(tmp_path: Path) -> None:
    store, table, runs = compactor(tmp_path)
    running = generated(state="running")

    async def work() -> None:
        await announce(store, [running], generation=1)
        await announce(store, [running], generation=2)
        assert (await runs.compact(force=True)).folded == 0
        assert len(keys(tmp_path, "inbox")) == 1
        await announce(store, [generated()], generation=3)
        assert (await runs.compact(force=True)).folded == 1
        assert (await table.load(max_age_s=0)).summaries[running.summary.identity].state == "ended"

    asyncio.run(work())
    assert keys(tmp_path, "inbox") == []


def test_newer_tables_replace_a_row_in_any_order(tmp_path: Path) -> None:
    store, table, runs = compactor(tmp_path)

    async def work() -> None:
        for generation, status in ((2, "FAILED"), (1, "SUCCEEDED")):  # the older one arrives last
            await announce(store, [generated(status=status)], generation)
            await runs.compact(force=True)
        (summary,) = (await table.load(max_age_s=0)).summaries.values()
        assert summary.jobs[0].status == "FAILED"

    asyncio.run(work())


def test_rows_of_removed_sessions_are_dropped_from_parts_and_inbox(tmp_path: Path) -> None:
    store, table, runs = compactor(tmp_path)
    first, second, third = (generated(number) for number in range(3))

    async def work() -> None:
        await announce(store, [first, second])
        await runs.compact(force=True)
        await announce(store, [third])
        gone = expected(first, third)
        assert (await runs.compact(gone)).removed == 2
        assert await identities(table) == expected(second)

    asyncio.run(work())
    assert keys(tmp_path, "inbox") == []


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1, 2", b"{" * 50_000, b"\xff\xfe"])
def test_damaged_summary_is_quarantined_and_counted(tmp_path: Path, damage: bytes) -> None:
    store, table, runs = compactor(tmp_path)
    good, bad = generated(0), generated(1)

    async def work() -> None:
        await announce(store, [good])
        await store.put(LAYOUT.run_inbox_key(ref_of(bad), 1, "cd"), damage)
        assert await identities(table) == expected(good)
        assert (await runs.compact(force=True)).quarantined == 1
        assert (await table.load(max_age_s=0)).quarantined == 1
        assert (await runs.compact(force=True)).quarantined == 0

    asyncio.run(work())
    assert keys(tmp_path, "inbox") == []
    assert len(keys(tmp_path, "quarantine")) == 1


def test_summary_that_claims_another_namespace_is_quarantined(tmp_path: Path) -> None:
    store, table, runs = compactor(tmp_path)

    async def work() -> None:
        forged = LAYOUT.run_inbox_key(SessionRef("team-x", *generated().summary.identity[1:]), 1, "ab")
        await store.put(forged, msgspec.json.encode(generated(namespace="default")))
        assert await identities(table) == set()
        assert (await runs.compact(force=True)).quarantined == 1

    asyncio.run(work())


def test_damaged_part_is_left_out_and_its_other_rows_can_be_announced_again(tmp_path: Path) -> None:
    store, _, runs = compactor(tmp_path)
    first, second = generated(0), generated(1, started_ms=FIRST_MS + DAY_MS)

    async def work() -> None:
        await announce(store, [first])
        await runs.compact(force=True)
        (part,) = (tmp_path / "store/ray-history/runs/parts").iterdir()
        part.write_bytes(b"x" * part.stat().st_size)
        await announce(store, [second])
        _, table, again = compactor(tmp_path / "other", store)
        rows = await table.load()
        assert (set(rows.summaries), len(rows.damaged)) == (expected(second), 1)
        assert (await again.compact(force=True)).quarantined == 1
        await announce(store, [first])
        assert await identities(table) == expected(first, second)

    asyncio.run(work())


def test_manifest_of_a_process_that_was_suspended_is_not_published(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)

    async def work() -> None:
        assert await publish_run_manifest(store, LAYOUT, RunManifest(generation=1))
        assert not await publish_run_manifest(store, LAYOUT, RunManifest(generation=1))
        assert await publish_run_manifest(store, LAYOUT, RunManifest(generation=9))
        assert not await publish_run_manifest(store, LAYOUT, RunManifest(generation=2))
        assert await list_generations(store, LAYOUT) == [9, 2, 1]

    asyncio.run(work())


class Killed(Exception):
    """The process ends here."""


class KillingStore(LocalStore):
    """A store that ends the process before or after one of its writes."""

    writes_left = 10**9

    async def _count(self, write: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        self.writes_left -= 1
        if self.writes_left == 0 and random.random() < 0.5:
            await write(*arguments)
        if self.writes_left <= 0:
            raise Killed
        await write(*arguments)

    async def put(self, key: str, data: bytes | Path) -> None:
        await self._count(super().put, key, data)

    async def create(self, key: str, data: bytes) -> None:
        await self._count(super().create, key, data)

    async def delete(self, key: str) -> None:
        await self._count(super().delete, key)

    async def delete_many(self, keys: Any) -> None:
        await self._count(super().delete_many, keys)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_summary_is_lost_when_replicas_compact_at_once_and_are_killed(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayhistory.index.leases.LEASE_EXPIRES_AFTER_S", 0.0)  # leases are only hints
    random.seed(seed)
    good = LocalStore(tmp_path / "store")
    everything = list(fleet(30, days=2, jobs=4, seed=seed))

    async def replica(name: str, writes: int) -> None:
        store = KillingStore(tmp_path / "store")
        store.writes_left = writes
        _, _, runs = compactor(tmp_path / name, store)
        with contextlib.suppress(Killed):
            await runs.compact(force=True)

    async def work() -> None:
        for number in range(10):
            await announce(good, everything[number * 3 : number * 3 + 3])
            await asyncio.gather(*(replica(f"{number}-{each}", random.randint(1, 14)) for each in range(2)))
            _, table, _ = compactor(tmp_path / f"reader-{number}", good)
            assert await identities(table) == expected(*everything[: number * 3 + 3])
        _, table, runs = compactor(tmp_path / "last", good)
        await runs.compact(force=True)
        assert await identities(table) == expected(*everything)

    asyncio.run(work())


def test_rows_are_written_a_constant_number_of_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ten times as many sessions in a day, each is still written a few times only."""
    batch = 2
    monkeypatch.setattr(run_compaction, "BATCH", batch)

    async def written_per_session(directory: Path, batches: int) -> float:
        store, table, runs = compactor(directory)
        rows = 0
        for number in range(batches):
            started = FIRST_MS + 30 * 366 * DAY_MS  # a day that is not over yet
            some = (generated(number * batch + each, started_ms=started) for each in range(batch))
            await announce(store, some)
            rows += (await runs.compact()).written_rows
        assert len(await identities(table)) == batches * batch
        return rows / (batches * batch)

    few = asyncio.run(written_per_session(tmp_path / "few", 2))
    many = asyncio.run(written_per_session(tmp_path / "many", 20))
    assert few == 1.0
    assert many <= 2.5


def test_lists_are_read_without_details(tmp_path: Path) -> None:
    class CountedStore(LocalStore):
        read = 0

        async def get_range(self, key: str, start: int, end: int) -> bytes:
            data = await super().get_range(key, start, end)
            self.read += len(data) if "/parts/" in key else 0
            return data

    store = CountedStore(tmp_path / "store")
    everything = list(fleet(60, days=1, functions=100))

    async def work() -> None:
        await announce(store, everything)
        _, table, runs = compactor(tmp_path / "writer", store)
        await runs.compact(force=True)
        (part,) = table.manifest.parts
        store.read = 0
        _, reader, _ = compactor(tmp_path / "reader", store)
        assert await identities(reader) == expected(*everything)
        assert store.read == part.size - part.details_size < part.size / 3
        chosen = everything[7]
        details = await reader.details([chosen.summary.identity])
        assert details == {chosen.summary.identity: chosen.details}
        assert store.read > part.size

    asyncio.run(work())


@pytest.mark.parametrize(
    "changes", [{"details_at": 2**40}, {"details_size": 2**40}, {"size": 2**50}, {"details_at": 4}]
)
def test_manifest_with_wrong_ranges_makes_a_part_damaged_or_readable(tmp_path: Path, changes: dict[str, int]) -> None:
    store = LocalStore(tmp_path / "store")

    async def work() -> None:
        await announce(store, [generated()])
        _, table, runs = compactor(tmp_path / "writer", store)
        await runs.compact(force=True)
        wrong = [msgspec.structs.replace(part, **changes) for part in table.manifest.parts]
        following = msgspec.structs.replace(table.manifest, generation=table.manifest.generation + 1, parts=wrong)
        await publish_run_manifest(store, LAYOUT, following)
        _, reader, _ = compactor(tmp_path / "reader", store)
        rows = await reader.load()
        assert set(rows.summaries) == expected(generated()) or rows.damaged

    asyncio.run(work())


class CompactedMeanwhile(LocalStore):
    """A store in which another server compacts after a reader has read the manifest and before it lists the inbox."""

    async def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        if prefix == LAYOUT.run_inbox_prefix():
            await self.manifest_read.wait()
            _, _, other = compactor(self.directory.parent / "other", LocalStore(self.directory))
            assert (await other.compact(force=True)).folded == 1
        async for info in super().list_all(prefix, start_after):
            yield info

    async def list_folder(self, prefix: str) -> Listing:
        listing = await super().list_folder(prefix)
        self.manifest_read.set()
        return listing

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.directory = directory
        self.manifest_read = asyncio.Event()


def test_summary_that_is_compacted_while_the_table_is_read_is_listed(tmp_path: Path) -> None:
    store = CompactedMeanwhile(tmp_path / "store")

    async def work() -> None:
        await announce(store, [generated()])
        _, reader, _ = compactor(tmp_path / "reader", store)
        assert await identities(reader) == expected(generated())

    asyncio.run(work())


def test_summaries_under_keys_of_earlier_versions_are_read_and_compacted(tmp_path: Path) -> None:
    store, table, runs = compactor(tmp_path)
    one = generated()

    async def work() -> None:
        await store.put(f"{LAYOUT.run_inbox_prefix()}/{ref_of(one).path}/1-ab.json", msgspec.json.encode(one))
        assert await identities(table) == expected(one)
        assert (await runs.compact(force=True)).folded == 1
        assert (await table.load(max_age_s=0)).summaries == {one.summary.identity: one.summary}

    asyncio.run(work())
    assert keys(tmp_path, "inbox") == []


def test_compacted_sessions_leave_no_folders_that_would_be_listed_for_ever(tmp_path: Path) -> None:
    store, _, runs = compactor(tmp_path)

    async def work() -> None:
        await announce(store, fleet(BATCH, days=1))
        await runs.compact()

    asyncio.run(work())
    namespaces = {each.summary.namespace for each in fleet(BATCH, days=1)}
    left = (tmp_path / "store" / LAYOUT.run_inbox_prefix()).rglob("*")
    assert {path.name for path in left} == namespaces


def test_cold_list_takes_three_rounds_of_requests(tmp_path: Path) -> None:
    """The list of manifests, the manifest, and all parts at once; the inbox is listed and read beside them."""
    months = [generated(number, started_ms=FIRST_MS + number * 31 * DAY_MS) for number in range(6)]
    good = LocalStore(tmp_path / "store")

    async def work() -> None:
        await announce(good, months)
        _, table, runs = compactor(tmp_path / "writer", good)
        await runs.compact(force=True)
        assert len(table.manifest.parts) == len(months)
        await announce(good, [generated(50), generated(51)])
        store = RoundsStore(tmp_path / "store")
        _, reader, _ = compactor(tmp_path / "reader", store)
        assert len(await identities(reader)) == len(months) + 2
        assert store.rounds == 3

    asyncio.run(work())
