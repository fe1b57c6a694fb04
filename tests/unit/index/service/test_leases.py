"""Several servers on one store: one folds, the others wait for it, but not for one that is gone."""

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from folding import RECORDED, REF, as_lines, put, settings_for
from rayhistory.index.builder import IndexBuilder
from rayhistory.index.claims import STALE, Claims
from rayhistory.index.manifest import Closing
from rayhistory.layout import Layout
from rayhistory.storage import open_store
from rayhistory.storage.local import LocalStore

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


class Slow(LocalStore):
    """A store that takes an object, and has it later, whether or not somebody waits for that."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.writing, self.go_on = threading.Event(), threading.Event()
        self.written: list[asyncio.Future[None]] = []

    async def put(self, key: str, data: bytes | Path) -> None:
        def later() -> None:
            self.writing.set()
            assert self.go_on.wait(60)
            self._write(key, data, os.replace)

        self.written.append(asyncio.ensure_future(asyncio.to_thread(later)))
        await asyncio.shield(self.written[-1])


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_claim_that_is_being_written_when_the_fold_ends_is_taken_back(tmp_path: Path, *, cancelled: bool) -> None:
    store = Slow(tmp_path)
    claims = Claims(store, LAYOUT)

    async def fold() -> None:
        async with claims.hold(REF):
            await asyncio.to_thread(store.writing.wait, 60)
            asyncio.get_running_loop().call_later(0.2, store.go_on.set)
            if cancelled:
                await asyncio.sleep(60)

    async def work() -> None:
        folding = asyncio.create_task(fold())
        if cancelled:
            await asyncio.to_thread(store.writing.wait, 60)
            await asyncio.sleep(0.1)
            folding.cancel()
        await asyncio.wait([folding])
        await asyncio.gather(*store.written)
        assert not await claims.is_held(REF)

    asyncio.run(work())
