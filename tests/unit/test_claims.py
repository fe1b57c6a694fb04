"""Several servers on one store: one folds, the others wait for it, but not for one that is gone."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from folding import RECORDED, REF, as_lines, put, settings_for
from rayhistory.index.builder import IndexBuilder
from rayhistory.index.claims import STALE, Claims
from rayhistory.index.manifest import Closing
from rayhistory.layout import Layout
from rayhistory.storage import open_store

LAYOUT = Layout()
CLOSING = Closing(1_794_770_600_000_000_000, clean=True)


def builder(directory: Path, name: str) -> IndexBuilder:
    settings = settings_for(directory / "store", cache=directory / name)
    return IndexBuilder(settings, open_store(settings, writable=True), LAYOUT)


def run(directory: Path, use: Callable[[IndexBuilder, IndexBuilder, Claims], Awaitable[None]]) -> None:
    put(directory / "store", 0, as_lines(RECORDED))

    async def both() -> None:
        first, second = builder(directory, "one"), builder(directory, "two")
        try:
            await use(first, second, Claims(open_store(settings_for(directory / "store"), writable=True), LAYOUT))
        finally:
            await first.close()
            await second.close()

    asyncio.run(both())


def test_two_servers_fold_a_session_once(tmp_path: Path) -> None:
    async def use(first: IndexBuilder, second: IndexBuilder, claims: Claims) -> None:
        opening = asyncio.create_task(first.open(REF, CLOSING, 120))
        while not await claims.is_held(REF):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        theirs = await second.open(REF, CLOSING, 120)
        assert theirs.manifest == (await opening).manifest
        assert theirs.manifest.generation == 1
        assert not await claims.is_held(REF)

    run(tmp_path, use)


def test_a_claim_of_a_server_that_is_gone_holds_nobody_up(tmp_path: Path) -> None:
    """It is a minute old, and nobody has renewed it."""

    async def use(first: IndexBuilder, second: IndexBuilder, claims: Claims) -> None:
        path = tmp_path / "store" / LAYOUT.claim_key(REF)
        path.parent.mkdir(parents=True)
        path.write_bytes(b"of a server that was killed")
        assert await claims.is_held(REF)
        old = time.time() - STALE - 1
        os.utime(path, (old, old))
        assert not await claims.is_held(REF)
        assert (await first.open(REF, CLOSING, 120)).manifest.counts.tasks == 23

    run(tmp_path, use)
