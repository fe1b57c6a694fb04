"""Several servers on one store: one folds, the others wait, but not for a server that is gone."""

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rayhistory.index.service.builder import IndexBuilder
from rayhistory.index.service.leases import LEASE_EXPIRES_AFTER_S, Leases
from rayhistory.sessions import Layout
from rayhistory.sessions.records import Closing
from rayhistory.storage import open_store
from rayhistory.storage.local import LocalStore
from support.folding import RECORDED, REF, as_lines, put, settings_for

pytestmark = pytest.mark.slow

LAYOUT = Layout()
LEASE = LAYOUT.lease_key(REF)
CLOSING = Closing(1_794_770_600_000_000_000, clean=True)


def builder(directory: Path, name: str) -> IndexBuilder:
    settings = settings_for(directory / "store", cache=directory / name)
    return IndexBuilder(settings, open_store(settings, writable=True), LAYOUT)


def run(directory: Path, use: Callable[[IndexBuilder, IndexBuilder, Leases], Awaitable[None]]) -> None:
    put(directory / "store", 0, as_lines(RECORDED))

    async def both() -> None:
        first, second = builder(directory, "one"), builder(directory, "two")
        try:
            await use(first, second, Leases(open_store(settings_for(directory / "store"), writable=True)))
        finally:
            await first.close()
            await second.close()

    asyncio.run(both())


def test_two_servers_fold_a_session_once(tmp_path: Path) -> None:
    async def use(first: IndexBuilder, second: IndexBuilder, leases: Leases) -> None:
        opening = asyncio.create_task(first.open(REF, CLOSING, 120))
        while not await leases.is_held(LEASE):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        index = await second.open(REF, CLOSING, 120)
        assert index.manifest == (await opening).manifest
        assert index.manifest.generation == 1
        assert not await leases.is_held(LEASE)

    run(tmp_path, use)


def test_expired_lease_does_not_delay_others(tmp_path: Path) -> None:
    """A lease that nobody renews expires after a minute."""

    async def use(first: IndexBuilder, second: IndexBuilder, leases: Leases) -> None:
        path = tmp_path / "store" / LEASE
        path.parent.mkdir(parents=True)
        path.write_bytes(b"written by a killed server")
        assert await leases.is_held(LEASE)
        old = time.time() - LEASE_EXPIRES_AFTER_S - 1
        os.utime(path, (old, old))
        assert not await leases.is_held(LEASE)
        assert (await first.open(REF, CLOSING, 120)).manifest.counts.tasks == 23

    run(tmp_path, use)


class SlowStore(LocalStore):
    """A store whose writes finish later, even if the caller is cancelled."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.writing, self.proceed = threading.Event(), threading.Event()
        self.written: list[asyncio.Future[None]] = []

    async def put(self, key: str, data: bytes | Path) -> None:
        def write_later() -> None:
            self.writing.set()
            assert self.proceed.wait(60)
            self._write(key, data, os.replace)

        self.written.append(asyncio.ensure_future(asyncio.to_thread(write_later)))
        await asyncio.shield(self.written[-1])


@pytest.mark.parametrize("cancelled", [False, True])
def test_lease_write_in_flight_at_the_end_is_deleted(tmp_path: Path, *, cancelled: bool) -> None:
    store = SlowStore(tmp_path)
    leases = Leases(store)

    async def fold() -> None:
        async with leases.hold(LEASE):
            await asyncio.to_thread(store.writing.wait, 60)
            asyncio.get_running_loop().call_later(0.2, store.proceed.set)
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
        assert not await leases.is_held(LEASE)

    asyncio.run(work())
