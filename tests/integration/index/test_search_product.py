"""The search index as a product: built by the server's process, extended, rebuilt when damaged, and never needed."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.index.products.product_manifest import read_latest_product
from rayhistory.search.scan_plan import UNIT_BYTES
from rayhistory.search.search_product import PRODUCT, has_too_many_shards
from rayhistory.search.shard_format import MAX_GROUPS
from rayhistory.server.app import create_app
from rayhistory.sessions import Layout
from rayhistory.settings import Settings
from rayhistory.storage import open_store
from support.recorded_sample import NODE, REF, settings_for, store_sample
from support.two_namespaces import store_live_session

FILES = {f"worker-{number}.out": b"an ordinary line %d\n" % number * 60_000 for number in range(3)}
"""Large enough that each is excluded by itself."""
NEEDLE = {"raylet.out": b"a line\n" * 1000 + b"the needle\n"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    store_sample(settings_for(tmp_path), FILES | NEEDLE)
    return dataclasses.replace(settings_for(tmp_path), index_ahead=False)


def search(settings: Settings, text: str) -> dict[str, Any]:
    """Build the index if it is missing, then search."""
    with TestClient(create_app(settings), base_url=f"http://testserver{REF.url}") as client:
        client.get("api/history/search", params={"q": text}).raise_for_status()  # starts the build
        wait_for_index(settings, client)
        body: dict[str, Any] = client.get("api/history/search", params={"q": text}).json()
    return body


def wait_for_index(settings: Settings, client: TestClient) -> None:
    products = client.app.state.resolver.builder.products  # type: ignore[attr-defined]

    async def wait() -> None:
        running = [each.task for each in products._running.values()]
        await asyncio.gather(*running, return_exceptions=True)

    client.portal.call(wait)  # type: ignore[union-attr]
    assert manifest(settings) is not None


def manifest(settings: Settings) -> Any:
    async def read() -> Any:
        store = open_store(settings)
        try:
            return await read_latest_product(store, Layout(settings.storage_root_dir), REF, "search", PRODUCT.version)
        finally:
            await store.close()

    return asyncio.run(read())


def test_a_search_reads_only_what_the_index_does_not_exclude(settings: Settings) -> None:
    body = search(settings, "needle")
    assert [(hit["file"], hit["line"], hit["node_id"]) for hit in body["hits"]] == [("raylet.out", 1001, NODE)]
    assert body["scanned_bytes"] == len(NEEDLE["raylet.out"])
    assert (body["complete"], body["total"]) == (True, 1)
    assert search(settings, "is nowhere")["scanned_bytes"] == 0


def test_a_damaged_index_changes_no_result_and_is_rebuilt(settings: Settings) -> None:
    search(settings, "needle")
    for path in Path(settings.local_storage_dir).rglob("*.shard"):
        path.write_bytes(b"damaged".ljust(path.stat().st_size, b"!"))
    before = manifest(settings).build
    body = search(settings, "needle")
    assert [hit["file"] for hit in body["hits"]] == ["raylet.out"]
    assert body["complete"]
    assert manifest(settings).build != before
    assert body["scanned_bytes"] == len(NEEDLE["raylet.out"])


def test_log_lines_without_new_events_are_indexed_after_a_search(settings: Settings, tmp_path: Path) -> None:
    """A quiet cluster whose workers go on writing: its tables stay the same."""
    store_live_session(tmp_path, "", REF)
    search(settings, "needle")
    (grown,) = Path(settings.local_storage_dir).rglob("logs/raylet.out")
    grown.write_bytes(b"one more line\n" * 2_000_000)
    search(settings, "needle")
    assert search(settings, "needle")["scanned_bytes"] == 0


def test_the_viewer_numbers_the_lines_of_a_large_file_with_the_index(settings: Settings) -> None:
    """Without an index, lines are counted only near the start of a file."""
    (path,) = Path(settings.local_storage_dir).rglob("logs/raylet.out")
    path.write_bytes(b"one more line\n" * 5_000_000)
    offset = 14 * 4_900_000
    with TestClient(create_app(settings), base_url=f"http://testserver{REF.url}") as client:
        url = f"logs/{NODE}/raylet.out"
        client.get("api/history/search", params={"q": "more"}).raise_for_status()  # starts the build
        wait_for_index(settings, client)
        assert 'id="L4900001"' in client.get(url, params={"offset": offset}).text
        assert f"offset={offset}&" in client.get(url, params={"line": 4_900_001}).text.replace("&amp;", "&")


def test_shards_of_a_large_session_are_not_built_again_by_an_extension() -> None:
    full, shard_bytes = 30, MAX_GROUPS * UNIT_BYTES
    assert not has_too_many_shards(full, full * shard_bytes)
    assert not has_too_many_shards(24, 24)
    assert has_too_many_shards(25, 25)
    assert has_too_many_shards(8 * full + 1, full * shard_bytes)
