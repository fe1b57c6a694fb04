"""Stores that are down, slow, overloaded or lose their answers: an outage is never an empty answer."""

import asyncio
import secrets
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from rayhistory.errors import (
    BucketNotFound,
    ObjectExists,
    ObjectNotFound,
    StoreDenied,
    StoreUnavailable,
    Throttled,
)
from rayhistory.settings import SERVER, resolve
from rayhistory.storage import Store, cloud, open_store
from storeservers import oss_double
from storeservers.bucket_double import Double, Refusal, serving
from storeservers.faulty import Fault, FaultyServer, faulty
from storeservers.processes import free_port

SLOW_DOWN = Fault(503, "SlowDown")
TOO_MANY = Fault(429, "TooManyRequests", (("Retry-After", "1"),))
DENIED = Fault(403, "AccessDenied")
RESET = Fault(reset=True)
ANSWER_LOST = Fault(reset=True, reaches_the_store=True)
DONE_BUT_500 = Fault(500, reaches_the_store=True)


@pytest.fixture
def relay(moto: str) -> Iterator[FaultyServer]:
    with faulty(moto) as server:
        yield server


@pytest.fixture
def run(relay: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Store], Awaitable[None]]], None]:
    """Runs a coroutine function with an S3 store behind the relay, which holds one object."""
    monkeypatch.setenv("S3_ENDPOINT", relay.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    def run_with_store(work: Callable[[Store], Awaitable[None]]) -> None:
        async def whole() -> None:
            store = open_store(
                resolve(SERVER, {"setting_store": f"s3://faults-{secrets.token_hex(8)}"})[0], writable=True
            )
            await store.put("there", b"0123456789")
            await work(store)

        asyncio.run(whole())

    return run_with_store


Run = Callable[[Callable[[Store], Awaitable[None]]], None]


async def everything(store: Store, expected: type[Exception]) -> None:
    """Every operation raises the same."""

    async def listed() -> None:
        _ = [info async for info in store.list_all("")]

    for call in (
        store.get("there"), store.get_range("there", 0, 4), store.head("there"), store.put("new", b""),
        store.delete("there"),
        store.list_folder(""), listed(), store.create("new", b""),
    ):  # fmt: skip
        with pytest.raises(expected):
            await call


@pytest.mark.parametrize("fault", [SLOW_DOWN, TOO_MANY, Fault(500), RESET], ids=["503", "429", "500", "reset"])
def test_what_passes_soon_is_not_noticed(run: Run, relay: FaultyServer, fault: Fault, tmp_path: Path) -> None:
    """Each request is tried again, with growing pauses."""
    large = tmp_path / "large"
    large.write_bytes(bytes(11 * 2**20))

    async def work(store: Store) -> None:
        for call in (
            lambda: store.put("a", b"1"), lambda: store.get("a"), lambda: store.head("a"),
            lambda: store.list_folder(""), lambda: store.create(secrets.token_hex(4), b"1"), lambda: store.delete("a"),
        ):  # fmt: skip
            relay.plan(fault, fault)
            await call()
            assert len(relay.seen) >= 3
        relay.plan(fault, None, None, fault)  # type: ignore[arg-type]
        await store.put("large", large)
        assert (await store.head("large")).size == 11 * 2**20

    run(work)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [(SLOW_DOWN, Throttled), (TOO_MANY, Throttled), (DENIED, StoreDenied), (RESET, StoreUnavailable)],
    ids=["503", "429", "403", "reset"],
)
def test_what_stays_is_raised_by_every_operation(
    run: Run, relay: FaultyServer, fault: Fault, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = {"init_backoff": timedelta(milliseconds=10), "max_backoff": timedelta(milliseconds=20), "base": 2}
    monkeypatch.setattr("rayhistory.storage.s3.retry_config", lambda: {"max_retries": 1, "backoff": brief})

    async def work(store: Store) -> None:
        relay.plan(always=fault)
        await everything(store, expected)

    run(work)


@pytest.mark.parametrize("fault", [ANSWER_LOST, DONE_BUT_500], ids=["answer lost", "done but 500"])
def test_a_create_whose_answer_got_lost_has_still_won(run: Run, relay: FaultyServer, fault: Fault) -> None:
    async def work(store: Store) -> None:
        relay.plan(fault, method="PUT")
        await store.create("claim", b"mine")
        relay.plan()
        assert await store.get("claim") == b"mine"
        with pytest.raises(ObjectExists):
            await store.create("claim", b"mine")

    run(work)


@pytest.mark.parametrize("fault", [RESET, Fault(500)], ids=["reset", "500"])
def test_a_create_that_did_not_arrive_is_tried_again(run: Run, relay: FaultyServer, fault: Fault) -> None:
    async def work(store: Store) -> None:
        relay.plan(fault, method="PUT")
        await store.create("claim", b"mine")
        assert await store.get("claim") == b"mine"

    run(work)


@pytest.mark.parametrize("fault", [RESET, ANSWER_LOST, DONE_BUT_500], ids=["reset", "answer lost", "done but 500"])
def test_a_create_that_came_second_has_lost_whatever_it_was_told(run: Run, relay: FaultyServer, fault: Fault) -> None:
    """Also with the same bytes: who was first is known by its signature."""

    async def work(store: Store) -> None:
        await store.create("claim", b"same")
        relay.plan(fault, method="PUT")
        with pytest.raises(ObjectExists):
            await store.create("claim", b"same")

    run(work)


def test_a_slow_line_is_not_a_dead_one(run: Run, relay: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is counted from byte to byte, and not for the whole object."""
    monkeypatch.setattr(cloud, "STALLED_AFTER", timedelta(seconds=3))

    async def work(store: Store) -> None:
        relay.plan(Fault(reaches_the_store=True, seconds_per_byte=0.5))
        assert await store.get("there") == b"0123456789"
        assert len(relay.seen) == 1

    run(work)


def test_a_line_that_stalls_is_given_up(run: Run, relay: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud, "STALLED_AFTER", timedelta(seconds=1))
    monkeypatch.setattr("rayhistory.storage.s3.retry_config", lambda: {"max_retries": 0})

    async def work(store: Store) -> None:
        relay.plan(always=Fault(reaches_the_store=True, seconds_per_byte=5))
        with pytest.raises(StoreUnavailable):
            await store.get("there")

    run(work)


def test_a_store_that_nobody_answers_for_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayhistory.storage.s3.retry_config", lambda: {"max_retries": 1})
    monkeypatch.setenv("S3_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    async def work() -> None:
        await everything(open_store(resolve(SERVER, {"setting_store": "s3://bucket"})[0]), StoreUnavailable)

    asyncio.run(work())


def test_a_bucket_that_is_not_there_is_not_an_empty_one(moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does not make it; the collector does, at its first write."""
    monkeypatch.setenv("S3_ENDPOINT", moto)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    settings, _ = resolve(SERVER, {"setting_store": f"s3://missing-{secrets.token_hex(8)}"})

    async def work() -> None:
        server = open_store(settings)
        for call in (server.list_folder(""), server.get("a"), server.put("a", b""), server.create("a", b"")):
            with pytest.raises(BucketNotFound, match="no such bucket"):
                await call
        collector = open_store(settings, writable=True)
        await collector.create("a", b"1")
        assert await server.get("a") == b"1"

    asyncio.run(work())


def test_a_short_process_ends_well(run: Run, relay: FaultyServer) -> None:
    """Whatever the client's threads are still at when it is over."""
    script = """
import asyncio
from rayhistory.settings import SERVER, resolve
from rayhistory.storage import open_store
async def work():
    store = open_store(resolve(SERVER, {"setting_store": "s3://short-processes"})[0], writable=True)
    await store.put("a", b"1")
    await store.list_folder("")
asyncio.run(work())
"""

    async def work(store: Store) -> None:
        for _ in range(10):
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
            assert await process.wait() == 0

    run(work)


def test_oss_waits_as_long_as_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client tells what the store said; obstore does not, and only backs off."""
    with serving(Double(oss_double.OssBucket, ("a-bucket",))) as double:
        for name, value in {
            "OSS_REGION": oss_double.REGION,
            "OSS_ENDPOINT": double.url,
            "ALIBABA_CLOUD_ACCESS_KEY_ID": oss_double.KEY,
            "ALIBABA_CLOUD_ACCESS_KEY_SECRET": oss_double.SECRET,
        }.items():
            monkeypatch.setenv(name, value)

        async def work() -> None:
            store = open_store(resolve(SERVER, {"setting_store": "oss://a-bucket"})[0])
            await store.put("there", b"1")
            double.faults = [Refusal(503, "DownloadTrafficRateLimitExceeded", headers={"Retry-After": "2"})]
            began = asyncio.get_running_loop().time()
            assert await store.get("there") == b"1"
            assert asyncio.get_running_loop().time() - began >= 2
            double.faults = [Refusal(403, "AccessDenied")] * 8
            await everything(store, StoreDenied)
            double.faults = []
            with pytest.raises(ObjectNotFound):
                await store.get("nothing")
            with pytest.raises(BucketNotFound):
                await open_store(resolve(SERVER, {"setting_store": "oss://other"})[0]).list_folder("")
            await store.close()

        asyncio.run(work())
