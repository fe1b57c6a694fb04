"""Products are built after the tables, once, kept up to date, and rebuilt when they are damaged."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rayhistory.errors import ProductFailed, ProductNotBuilt, UsageError
from rayhistory.index.leases import Leases
from rayhistory.index.manifest import Manifest
from rayhistory.index.products import product_builder
from rayhistory.index.products.product_builder import ProductBuilder
from rayhistory.index.products.product_manifest import ProductManifest
from rayhistory.index.service.builder import IndexBuilder
from rayhistory.sessions import Layout
from rayhistory.settings import Settings
from rayhistory.storage import open_store
from rayhistory.storage.local import LocalStore
from support.counted_names import PATH
from support.folding import END, RECORDED, REF, as_lines, fold_session, put, settings_for
from support.paths import ROOT

LAYOUT = Layout()
GOOD = PATH + "COUNTED_NAMES"
FOLDER = LAYOUT.product_prefix(REF, "counted")

pytestmark = pytest.mark.slow

Work = Callable[[ProductBuilder], Awaitable[None]]


@pytest.fixture(autouse=True)
def product_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child process imports the product by its name."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))


@pytest.fixture
def tables(tmp_path: Path) -> Manifest:
    put(tmp_path, 0, as_lines(RECORDED[:60]))
    return fold_session(tmp_path)


def grow(directory: Path) -> Manifest:
    put(directory, 1, as_lines(RECORDED[60:]))
    return fold_session(directory)


def with_products(settings: Settings, *products: str, work: Work) -> None:
    async def run() -> None:
        builder = IndexBuilder(settings, open_store(settings, writable=True), LAYOUT, products=products)
        try:
            await work(builder.products)
        finally:
            await builder.close()

    asyncio.run(run())


def build(directory: Path, tables: Manifest, product: str = GOOD) -> list[ProductManifest]:
    built: list[ProductManifest] = []

    async def work(products: ProductBuilder) -> None:
        built.extend(await products.build(REF, tables))

    with_products(settings_for(directory), product, work=work)
    return built


async def idle(products: ProductBuilder) -> None:
    while products._running:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def objects(directory: Path) -> set[str]:
    return {str(path.relative_to(directory / FOLDER)) for path in (directory / FOLDER).rglob("*") if path.is_file()}


def test_first_request_finds_nothing_and_starts_the_build(tmp_path: Path, tables: Manifest) -> None:
    async def work(products: ProductBuilder) -> None:
        assert await products.open(REF, "counted", tables) is None
        opened = await products.wait(REF, "counted", tables, 60)
        assert opened.is_current
        assert opened.preview == {"names": len(json.loads((await opened.file("names.json")).read_text())), "builds": 1}
        assert await opened.read("first.txt", 8, 10) == b"by"
        assert await products.open(REF, "counted", tables) is not None

    with_products(settings_for(tmp_path), GOOD, work=work)


def test_product_that_takes_too_long_is_not_built_yet(tmp_path: Path, tables: Manifest) -> None:
    async def work(products: ProductBuilder) -> None:
        with pytest.raises(ProductNotBuilt, match=r"counted: waiting for a free slot"):
            await products.wait(REF, "counted", tables, 0)

    with_products(settings_for(tmp_path), GOOD, work=work)


def test_unknown_product_is_a_wrong_request(tmp_path: Path, tables: Manifest) -> None:
    async def work(products: ProductBuilder) -> None:
        with pytest.raises(UsageError, match=r"unknown product 'nothing': use one of counted"):
            await products.open(REF, "nothing", tables)

    with_products(settings_for(tmp_path), GOOD, work=work)


def test_fold_builds_products_in_the_background(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(RECORDED))
    settings = settings_for(tmp_path)

    async def run() -> None:
        builder = IndexBuilder(settings, open_store(settings, writable=True), LAYOUT, products=(GOOD,))
        index = await builder.open(REF, END, 120)
        assert await builder.products.latest(REF, "counted") is None  # tables are visible first
        while await builder.products.missing(REF, index.manifest):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await builder.close()

    asyncio.run(run())


def test_extension_reuses_files_of_the_previous_build(tmp_path: Path, tables: Manifest) -> None:
    (first,) = build(tmp_path, tables)
    assert build(tmp_path, tables) == []  # nothing is new
    (second,) = build(tmp_path, grow(tmp_path))
    assert second.preview["builds"] == 2
    assert second.files["first.txt"] == first.files["first.txt"]
    assert second.files["names.json"].build == second.build != first.build


def test_builds_that_nobody_reads_are_deleted(tmp_path: Path, tables: Manifest) -> None:
    first, *_ = build(tmp_path, tables)
    for number in range(2, 5):
        put(tmp_path, number, as_lines(RECORDED[:1]))
        tables = fold_session(tmp_path)
        (latest,) = build(tmp_path, tables)
    assert latest.generation == 4
    kept = {name for name in objects(tmp_path) if name.endswith(".json") and "/" not in name}
    assert kept == {"manifest-3.product.json", "manifest-4.product.json"}
    assert {name.partition("/")[0] for name in objects(tmp_path) if "first.txt" in name} == {first.build}
    assert len({name.partition("/")[0] for name in objects(tmp_path) if "names.json" in name}) == 2


def test_session_that_ended_since_is_not_served_from_an_older_build(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(RECORDED))
    build(tmp_path, fold_session(tmp_path, None))
    ended = fold_session(tmp_path, END)

    async def work(products: ProductBuilder) -> None:
        assert await products.missing(REF, ended) == ["counted"]
        assert await products.open(REF, "counted", ended) is None
        assert (await products.wait(REF, "counted", ended, 60)).manifest.closing == END

    with_products(settings_for(tmp_path), GOOD, work=work)


def test_grown_session_is_served_while_the_next_build_runs(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(RECORDED[:60]))
    build(tmp_path, fold_session(tmp_path, None))
    put(tmp_path, 1, as_lines(RECORDED[60:]))
    grown = fold_session(tmp_path, None)

    async def work(products: ProductBuilder) -> None:
        opened = await products.open(REF, "counted", grown)
        assert opened is not None
        assert not opened.is_current
        await products.build(REF, grown)
        opened = await products.open(REF, "counted", grown)
        assert opened is not None
        assert opened.is_current

    with_products(settings_for(tmp_path), GOOD, work=work)


def test_outgrown_product_of_a_running_session_is_extended_once(tmp_path: Path) -> None:
    """Log lines are in no table: a search finds that they are not indexed."""
    put(tmp_path, 0, as_lines(RECORDED[:60]))
    running = fold_session(tmp_path, None)
    (first,) = build(tmp_path, running)

    async def work(products: ProductBuilder) -> None:
        for _ in range(2):  # two visitors with the same build
            await products.extend(REF, first, running)
            await idle(products)
        latest = await products.latest(REF, "counted")
        assert latest is not None
        assert latest.preview["builds"] == 2

    with_products(settings_for(tmp_path), GOOD, work=work)


def test_product_of_an_ended_session_is_not_outgrown(tmp_path: Path, tables: Manifest) -> None:
    ended = fold_session(tmp_path, END)
    (first,) = build(tmp_path, ended)

    async def work(products: ProductBuilder) -> None:
        await products.extend(REF, first, ended)
        assert not products._running

    with_products(settings_for(tmp_path), GOOD, work=work)


@pytest.mark.parametrize(
    "damage",
    [Path.unlink, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"?" * path.stat().st_size)],
)
def test_damaged_product_is_rebuilt(tmp_path: Path, tables: Manifest, damage: Callable[[Path], object]) -> None:
    (first,) = build(tmp_path, tables)
    damage(tmp_path / FOLDER / first.build / "names.json")

    async def work(products: ProductBuilder) -> None:
        opened = await products.open(REF, "counted", tables)
        assert opened is not None
        with pytest.raises(ProductNotBuilt, match="counted is damaged and being rebuilt"):
            await opened.file("names.json")
        await idle(products)
        rebuilt = await products.wait(REF, "counted", tables, 60)
        assert rebuilt.manifest.preview["builds"] == 1
        assert await rebuilt.file("names.json")

    with_products(settings_for(tmp_path), GOOD, work=work)


def test_product_that_stays_damaged_is_not_rebuilt_for_every_request(tmp_path: Path, tables: Manifest) -> None:
    build(tmp_path, tables)

    async def work(products: ProductBuilder) -> None:
        for _ in range(2):
            opened = await products.wait(REF, "counted", tables, 60)
            raise_to = opened.damaged("content makes no sense")
            assert isinstance(raise_to, ProductNotBuilt)
            await idle(products)
        assert "still cannot be read" in products._recent_failure(REF, "counted")

    with_products(settings_for(tmp_path), GOOD, work=work)


def test_damaged_previous_build_leads_to_a_full_build(tmp_path: Path, tables: Manifest) -> None:
    (first,) = build(tmp_path, tables)
    (tmp_path / FOLDER / first.build / "history.json").unlink()
    (second,) = build(tmp_path, grow(tmp_path))
    assert second.preview["builds"] == 1


def test_other_version_is_built_beside(tmp_path: Path, tables: Manifest) -> None:
    """Two releases on one store do not rebuild each other's products."""
    build(tmp_path, tables)
    (newer,) = build(tmp_path, tables, PATH + "NEXT_VERSION")
    assert (newer.version, newer.generation, newer.preview["builds"]) == (2, 2, 1)
    assert build(tmp_path, tables) == build(tmp_path, tables, PATH + "NEXT_VERSION") == []


def test_preview_of_an_older_version_is_shown_until_the_product_is_rebuilt(tmp_path: Path, tables: Manifest) -> None:
    """After an upgrade, lists have previews before all sessions were opened."""
    newer = PATH + "NEXT_VERSION"

    async def work(products: ProductBuilder) -> None:
        previews.append(await products.preview(REF, "counted"))
        assert await products.latest(REF, "counted") is None

    previews: list[dict[str, Any]] = []
    with_products(settings_for(tmp_path), newer, work=work)
    (old,) = build(tmp_path, tables)
    with_products(settings_for(tmp_path), newer, work=work)
    assert previews == [{}, old.preview]
    assert old.preview


@pytest.mark.parametrize(
    ("product", "reason"),
    [("FAILING", "the rules are wrong"), ("GREEDY", "MemoryError"), ("TALKATIVE", "preview is larger than 16384")],
)
def test_failed_build_is_reported_and_not_repeated_at_once(
    tmp_path: Path, tables: Manifest, product: str, reason: str
) -> None:
    async def work(products: ProductBuilder) -> None:
        with pytest.raises(ProductFailed, match=reason):
            await products.wait(REF, "counted", tables, 60)
        assert await products.open(REF, "counted", tables) is None
        assert not products._running
        with pytest.raises(ProductFailed, match=reason):
            await products.wait(REF, "counted", tables, 60)

    with_products(settings_for(tmp_path), PATH + product, work=work)
    assert not objects(tmp_path)


def test_each_failure_doubles_the_pause(tmp_path: Path, tables: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_builder, "_MIN_RETRY_AFTER_S", 0.01)
    pauses = []

    async def work(products: ProductBuilder) -> None:
        for _ in range(2):
            with pytest.raises(ProductFailed):
                await products.build(REF, tables)
            failure = products._failed.get((REF.identity, "counted"))
            assert failure is not None
            pauses.append(failure.pause_s)

    with_products(settings_for(tmp_path), PATH + "FAILING", work=work)
    assert pauses == [0.01, 0.02]


def test_two_servers_build_a_product_once(tmp_path: Path, tables: Manifest) -> None:
    settings = [settings_for(tmp_path, cache=tmp_path / name) for name in ("one", "two")]

    async def run() -> None:
        builders = [IndexBuilder(each, open_store(each, writable=True), LAYOUT, products=(GOOD,)) for each in settings]
        leases = Leases(LocalStore(tmp_path))
        first = asyncio.create_task(builders[0].products.build(REF, tables))
        while not await leases.is_held(LAYOUT.product_lease_key(REF, "counted")):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        second = await builders[1].products.build(REF, tables)
        assert second == await first
        for each in builders:
            await each.close()

    asyncio.run(run())
    assert "manifest-2.product.json" not in objects(tmp_path)
