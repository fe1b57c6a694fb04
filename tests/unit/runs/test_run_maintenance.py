"""The run table is kept up to date: what is missing is restored from summaries, what was removed is dropped."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from rayhistory.index.products.product_builder import ProductBuilder
from rayhistory.index.products.product_manifest import ProductFile, ProductManifest, publish_product
from rayhistory.index.table_cache import TableCache
from rayhistory.runs.run_maintenance import RunMaintenance
from rayhistory.runs.run_table import RunTable
from rayhistory.runs.session_summary import StoredSummary
from rayhistory.runs.summary_product import FILE, NAME, PRODUCT
from rayhistory.sessions.catalog import SessionCatalog
from rayhistory.settings import resolve
from rayhistory.storage.local import LocalStore
from support.generated_runs import LAYOUT, announce, generated, identities, ref_of

Work = Callable[[LocalStore, RunMaintenance, RunTable], Awaitable[None]]


async def build_summary(store: LocalStore, stored: StoredSummary, data: bytes | None = None) -> None:
    """Store a session with its summary as a product, as a copy of it has."""
    data = msgspec.json.encode(stored) if data is None else data
    ref = ref_of(stored)
    await store.put(LAYOUT.metadata_key(ref), b"")
    await store.put(LAYOUT.product_file_key(ref, NAME, "1-ab", FILE), data)
    manifest = ProductManifest(
        product=NAME, version=PRODUCT.version, generation=1, build="1-ab", files={FILE: ProductFile("1-ab", len(data))},
        tables_generation=3, tables_covered="x", closing=None, preview={}, seconds=0.1,
    )  # fmt: skip
    await publish_product(store, LAYOUT, ref, manifest)


def maintain(directory: Path, work: Work, *, keep_removed: bool = False) -> None:
    async def run() -> None:
        store = LocalStore(directory / "store")
        settings = resolve("historyserver", {"setting_cache_dir": str(directory / "cache")}, {})[0]
        cache = TableCache(directory / "index", store, LAYOUT, 1 << 30)
        products = ProductBuilder(settings, store, LAYOUT, cache, ("rayhistory.runs.summary_product:PRODUCT",))
        table = RunTable(store, LAYOUT, directory / "cache")
        catalog = SessionCatalog(store, LAYOUT, 120.0)
        await work(store, RunMaintenance(table, catalog, products, keep_removed=keep_removed), table)

    asyncio.run(run())


def test_summaries_that_were_never_announced_are_restored(tmp_path: Path) -> None:
    one, two = generated(0), generated(1)

    async def work(store: LocalStore, maintenance: RunMaintenance, table: RunTable) -> None:
        await build_summary(store, one)
        await build_summary(store, two)
        await announce(store, [two])
        assert await maintenance.restore() == 1
        assert await identities(table) == {one.summary.identity, two.summary.identity}
        assert await maintenance.restore() == 0

    maintain(tmp_path, work)


@pytest.mark.parametrize("data", [b"{}", msgspec.json.encode(generated(7, namespace="team-x"))])
def test_damaged_or_foreign_summary_is_not_restored(tmp_path: Path, data: bytes) -> None:
    async def work(store: LocalStore, maintenance: RunMaintenance, table: RunTable) -> None:
        await build_summary(store, generated(0), data)
        assert await maintenance.restore() == 0
        assert await identities(table) == set()

    maintain(tmp_path, work)


def test_lost_table_is_rebuilt_from_the_summaries(tmp_path: Path) -> None:
    one = generated(0)

    async def lose(store: LocalStore, maintenance: RunMaintenance, table: RunTable) -> None:
        await build_summary(store, one)
        await maintenance.restore()
        await maintenance.compact(force=True)
        for info in [info async for info in store.list_all(LAYOUT.runs_prefix())]:
            await store.delete(info.key)

    async def rebuild(store: LocalStore, maintenance: RunMaintenance, table: RunTable) -> None:
        assert await identities(table) == set()
        await maintenance.restore()
        await maintenance.compact(force=True)
        assert await identities(table) == {one.summary.identity}
        assert await table.details([one.summary.identity]) == {one.summary.identity: one.details}

    maintain(tmp_path / "a", lose)
    (tmp_path / "b").mkdir()
    (tmp_path / "a/store").rename(tmp_path / "b/store")
    maintain(tmp_path / "b", rebuild)


@pytest.mark.parametrize("keep_removed", [False, True])
def test_rows_of_removed_sessions_are_dropped_unless_they_are_kept(tmp_path: Path, keep_removed: bool) -> None:
    one, two = generated(0), generated(1)

    async def work(store: LocalStore, maintenance: RunMaintenance, table: RunTable) -> None:
        for each in (one, two):
            await build_summary(store, each)
        await announce(store, [one, two])
        await maintenance.compact(force=True)
        await store.delete(LAYOUT.metadata_key(ref_of(one)))
        maintenance._catalog._listed_at = float("-inf")
        await maintenance.compact()
        kept = {one.summary.identity} if keep_removed else set()
        assert await identities(table) == {two.summary.identity} | kept

    maintain(tmp_path, work, keep_removed=keep_removed)


def test_session_that_is_newer_than_the_list_of_sessions_is_not_taken_for_removed(tmp_path: Path) -> None:
    async def work(store: LocalStore, maintenance: RunMaintenance, table: RunTable) -> None:
        await build_summary(store, generated(0))
        await maintenance.compact(force=True)  # lists all sessions, and the list counts as fresh for seconds
        await build_summary(store, generated(1))
        await announce(store, [generated(1)])
        assert (await maintenance.compact(force=True)).removed == 0
        assert await identities(table) == {generated(1).summary.identity}

    maintain(tmp_path, work)
