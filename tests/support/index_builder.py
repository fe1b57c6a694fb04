"""An index builder on a directory store, for tests of indexes and queries."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from rayhistory.index.service.builder import IndexBuilder
from rayhistory.sessions import Layout
from rayhistory.settings import Settings, resolve
from rayhistory.storage import open_store


def settings_for(directory: Path, **more: str) -> Settings:
    flags = {"setting_local_storage_dir": str(directory), "setting_cache_dir": str(directory / "cache")}
    return resolve("historyserver", flags | {f"setting_{name}": value for name, value in more.items()}, {})[0]


def with_builder(settings: Settings, work: Callable[[IndexBuilder], Awaitable[None]]) -> None:
    """Run a coroutine function with a builder, and close the builder."""

    async def run_and_close() -> None:
        builder = IndexBuilder(settings, open_store(settings), Layout())
        await work(builder)
        await builder.close()

    asyncio.run(run_and_close())
