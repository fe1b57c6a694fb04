"""Several servers on one store: one folds, the others wait, but not for a server that is gone."""

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rayhistory.errors import StoreUnavailable
from rayhistory.index.leases import LEASE_EXPIRES_AFTER_S, Leases
from rayhistory.index.service.builder import IndexBuilder
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
def test_lease_write_in_flight_at_the_end_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, cancelled: bool
) -> None:
    monkeypatch.setattr("rayhistory.index.leases._RENEW_INTERVAL_S", 0.01)
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


def test_one_of_many_takes_a_lease(tmp_path: Path) -> None:
    leases = Leases(LocalStore(tmp_path))
    taken = []

    async def take() -> None:
        async with leases.hold(LEASE) as is_held:
            taken.append(is_held)
            await asyncio.sleep(0.2)

    async def work() -> None:
        await asyncio.gather(*(take() for _ in range(10)))
        assert not await leases.is_held(LEASE)

    asyncio.run(work())
    assert sorted(taken) == [False] * 9 + [True]


def test_expired_lease_is_taken_over(tmp_path: Path) -> None:
    async def work() -> None:
        leases = Leases(LocalStore(tmp_path))
        await LocalStore(tmp_path).put(LEASE, b"written by a killed server")
        old = time.time() - LEASE_EXPIRES_AFTER_S - 1
        os.utime(tmp_path / LEASE, (old, old))
        async with leases.hold(LEASE) as is_held:
            assert is_held
            async with leases.hold(LEASE) as is_held_again:
                assert not is_held_again
            assert await leases.is_held(LEASE)

    asyncio.run(work())


def test_store_that_refuses_leases_does_not_keep_sessions_from_being_folded(tmp_path: Path) -> None:
    class Refusing(LocalStore):
        async def create(self, key: str, data: bytes) -> None:
            raise StoreUnavailable("no writes today")

    async def work() -> None:
        async with Leases(Refusing(tmp_path)).hold(LEASE) as is_held:
            assert is_held

    asyncio.run(work())


def test_server_leaves_sessions_to_another_that_folds_them(tmp_path: Path) -> None:
    async def use(first: IndexBuilder, second: IndexBuilder, leases: Leases) -> None:
        async with leases.hold(LEASE):
            assert await first.extend(REF, CLOSING) is None
        manifest = await first.extend(REF, CLOSING)
        assert manifest is not None
        assert await second.extend(REF, CLOSING) == manifest

    run(tmp_path, use)


def test_fold_that_another_server_has_done_meanwhile_is_not_repeated(tmp_path: Path) -> None:
    """Both servers found the same new objects; one waited for a slot while the other folded them."""

    async def use(first: IndexBuilder, second: IndexBuilder, leases: Leases) -> None:
        listing = await second._list(REF)
        manifest = await first.extend(REF, CLOSING)
        assert await second._start(REF, CLOSING, listing=listing).task == manifest

    run(tmp_path, use)
