"""Products of sessions that a command indexed are built by the server, without a request for each session."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.cli.session_store import open_session_store
from rayhistory.index.service.builder import IndexBuilder
from rayhistory.runs.run_maintenance import RunMaintenance
from rayhistory.runs.run_table import RunTable
from rayhistory.server.app import create_app
from rayhistory.server.product_backlog import ProductBacklog
from rayhistory.server.products import PRODUCTS
from rayhistory.sessions.catalog import CatalogEntry, SessionCatalog
from rayhistory.settings import Settings
from support.counting_store import CountingStore
from support.generated_runs import FIRST_MS, LAYOUT, announce, generated, identities, ref_of, store_runs
from support.recorded_sample import REF, settings_for, store_indexed_sample, store_sample

pytestmark = pytest.mark.slow

SUMMARY = ("rayhistory.runs.summary_product:PRODUCT",)


def index_like_a_command(settings: Settings) -> None:
    """Build the tables of the sample, and no product."""

    async def work() -> None:
        async with open_session_store(settings) as (store, layout, catalog):
            builder = IndexBuilder(dataclasses.replace(settings, index_ahead=False), store, layout, products=PRODUCTS)
            entry = await catalog.find(REF.namespace, REF.cluster, REF.session)
            await builder.open(REF, await catalog.closing(entry))
            await builder.close()

    asyncio.run(work())


def wait_for_run(client: TestClient) -> dict[str, Any]:
    deadline = time.monotonic() + 120
    while not (body := client.get("/api/history/runs").json())["runs"]:
        assert time.monotonic() < deadline, body
        time.sleep(0.1)
    return dict(body)


def test_server_lists_the_runs_of_a_session_that_a_command_indexed(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    store_sample(settings)
    index_like_a_command(settings)
    with TestClient(create_app(settings)) as client:
        assert wait_for_run(client)["unsummarized"] == 0


@asynccontextmanager
async def backlog_of(directory: Path) -> AsyncIterator[tuple[ProductBacklog, CountingStore, SessionCatalog, RunTable]]:
    settings, store = settings_for(directory), CountingStore(directory / "store")
    catalog, table = SessionCatalog(store, LAYOUT, 120.0), RunTable(store, LAYOUT, directory / "cache")
    builder = IndexBuilder(settings, store, LAYOUT, products=SUMMARY)
    maintenance = RunMaintenance(table, catalog, builder.products, keep_removed=False)
    yield ProductBacklog(table, catalog, builder, maintenance), store, catalog, table
    await builder.close()


def test_sessions_in_the_run_table_cost_no_listing(tmp_path: Path) -> None:
    stored = [generated(number) for number in range(50)]
    store_runs(settings_for(tmp_path), stored)

    async def work() -> None:
        async with backlog_of(tmp_path) as (backlog, store, catalog, table):
            entries, _ = await catalog.entries(), await table.load()
            store.listings.clear()
            for entry in entries:
                backlog.add(entry, 1)
            await backlog.build_all()
            assert not store.listings

    asyncio.run(work())


def test_row_of_a_copied_session_is_restored_from_its_summary(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    store_indexed_sample(settings)
    for path in (tmp_path / "store" / LAYOUT.runs_prefix()).rglob("*.json"):
        path.unlink()

    async def work() -> None:
        async with backlog_of(tmp_path) as (backlog, _, catalog, table):
            (entry,) = await catalog.entries()
            backlog.add(entry, 1)
            await backlog.build_all()
            assert await identities(table) == {REF.identity}

    asyncio.run(work())


def test_newest_session_comes_first_and_namespaces_take_turns(tmp_path: Path) -> None:
    hour = 3_600_000
    many = [generated(number, started_ms=FIRST_MS + number * hour) for number in range(3)]
    other = generated(9, namespace="team-x")

    async def work() -> None:
        async with backlog_of(tmp_path) as (backlog, store, _, table):
            await announce(store, [many[2]], generation=1)
            for each in (*many, other):
                entry = CatalogEntry.of(ref_of(each))
                backlog.add(entry, 2)
            rows = await table.load()
            order = []
            while session := backlog.next_session(rows):
                order.append(session.entry.ref.identity)
            first, second = order[:2]
            assert {first[0], second[0]} == {"default", "team-x"}
            of_default = [identity for identity in order if identity[0] == "default"]
            assert of_default == [each.summary.identity for each in reversed(many)]

    asyncio.run(work())
