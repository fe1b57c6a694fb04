"""A process builds one product after the other, unless it failed or needed much memory."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from rayhistory.errors import ProductFailed
from rayhistory.index.manifest import Manifest
from rayhistory.index.products import product_engine
from rayhistory.index.products.product_engine import ProductProcesses
from rayhistory.index.products.product_process import ProductJob
from support.counted_names import PATH
from support.folding import RECORDED, REF, as_lines, fold_session, put, settings_for
from support.paths import ROOT

pytestmark = pytest.mark.slow

Build = Callable[[str], Awaitable[None]]


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    put(tmp_path, 0, as_lines(RECORDED[:60]))
    return fold_session(tmp_path)


def with_processes(
    directory: Path, tables: Manifest, work: Callable[[ProductProcesses, Build], Awaitable[None]]
) -> None:
    async def run() -> None:
        processes = ProductProcesses()
        scratch = iter(range(10))

        async def build(product: str) -> None:
            own = directory / f"scratch-{next(scratch)}"
            own.mkdir()
            settings = msgspec.to_builtins(settings_for(directory))
            await processes.run(ProductJob(PATH + product, settings, REF, tables, str(own)), lambda report: None)

        try:
            await work(processes, build)
        finally:
            await processes.close()

    asyncio.run(run())


def test_process_is_used_again_and_ends_when_idle(
    tmp_path: Path, tables: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(processes: ProductProcesses, build: Build) -> None:
        await build("COUNTED_NAMES")
        (process,) = processes._idle
        monkeypatch.setattr(product_engine, "_IDLE_S", 0.01)
        await build("COUNTED_NAMES")
        assert process.jobs == 2
        while process.is_alive:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not processes._idle

    with_processes(tmp_path, tables, work)


@pytest.mark.parametrize("product", ["LARGE", "FAILING"])
def test_process_that_failed_or_needed_much_memory_is_not_used_again(
    tmp_path: Path, tables: Manifest, product: str
) -> None:
    async def work(processes: ProductProcesses, build: Build) -> None:
        await build("COUNTED_NAMES")
        (process,) = processes._idle
        try:
            await build(product)
        except ProductFailed as error:
            assert "the rules are wrong" in str(error)
        assert process.jobs == 2
        assert not process.is_alive
        assert not processes._idle

    with_processes(tmp_path, tables, work)


def test_process_that_ended_meanwhile_is_replaced(tmp_path: Path, tables: Manifest) -> None:
    async def work(processes: ProductProcesses, build: Build) -> None:
        await build("COUNTED_NAMES")
        (process,) = processes._idle
        await process.close()
        await build("COUNTED_NAMES")
        assert processes._idle != [process]

    with_processes(tmp_path, tables, work)
