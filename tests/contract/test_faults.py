"""Stores that are down, slow or overloaded, or whose responses are lost: an outage is never an empty result."""

import asyncio
import secrets
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from rayhistory.errors import (
    BucketNotFound,
    ObjectExists,
    ObjectNotFound,
    StoreDenied,
    StoreThrottled,
    StoreUnavailable,
)
from rayhistory.settings import SERVER, resolve
from rayhistory.storage import Store, cloud, open_store
from support.store_servers import oss_double
from support.store_servers.bucket_double import Double, ErrorReply, serving
from support.store_servers.faulty import Fault, FaultyServer, faulty
from support.store_servers.processes import free_port

SLOW_DOWN = Fault(503, "SlowDown")
TOO_MANY = Fault(429, "TooManyRequests", (("Retry-After", "1"),))
DENIED = Fault(403, "AccessDenied")
RESET = Fault(reset=True)
RESPONSE_LOST = Fault(reset=True, reaches_store=True)
STORED_BUT_500 = Fault(500, reaches_store=True)


@pytest.fixture
def relay(moto: str) -> Iterator[FaultyServer]:
    with faulty(moto) as server:
        yield server


@pytest.fixture
def run(relay: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Store], Awaitable[None]]], None]:
    """Run a coroutine function with an S3 store behind the relay; the store has one object."""
    monkeypatch.setenv("S3_ENDPOINT", relay.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    def run_with_store(work: Callable[[Store], Awaitable[None]]) -> None:
        async def run_once() -> None:
            store = open_store(
                resolve(SERVER, {"setting_store": f"s3://faults-{secrets.token_hex(8)}"})[0], writable=True
            )
            await store.put("there", b"0123456789")
            await work(store)

        asyncio.run(run_once())

    return run_with_store


Run = Callable[[Callable[[Store], Awaitable[None]]], None]


async def assert_every_operation_raises(store: Store, expected: type[Exception]) -> None:

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
def test_transient_faults_are_retried(run: Run, relay: FaultyServer, fault: Fault, tmp_path: Path) -> None:
    """Requests are retried with growing pauses."""
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
    [(SLOW_DOWN, StoreThrottled), (TOO_MANY, StoreThrottled), (DENIED, StoreDenied), (RESET, StoreUnavailable)],
    ids=["503", "429", "403", "reset"],
)
def test_permanent_faults_are_raised_by_every_operation(
    run: Run, relay: FaultyServer, fault: Fault, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    short_backoff = {"init_backoff": timedelta(milliseconds=10), "max_backoff": timedelta(milliseconds=20), "base": 2}
    monkeypatch.setattr("rayhistory.storage.s3.retry_config", lambda: {"max_retries": 1, "backoff": short_backoff})

    async def work(store: Store) -> None:
        relay.plan(always=fault)
        await assert_every_operation_raises(store, expected)

    run(work)


@pytest.mark.parametrize("fault", [RESPONSE_LOST, STORED_BUT_500], ids=["response lost", "stored but 500"])
def test_create_succeeds_if_only_the_response_is_lost(run: Run, relay: FaultyServer, fault: Fault) -> None:
    async def work(store: Store) -> None:
        relay.plan(fault, method="PUT")
        await store.create("lease", b"mine")
        relay.plan()
        assert await store.get("lease") == b"mine"
        with pytest.raises(ObjectExists):
            await store.create("lease", b"mine")

    run(work)


@pytest.mark.parametrize("fault", [RESET, Fault(500)], ids=["reset", "500"])
def test_create_is_retried_if_the_request_is_lost(run: Run, relay: FaultyServer, fault: Fault) -> None:
    async def work(store: Store) -> None:
        relay.plan(fault, method="PUT")
        await store.create("lease", b"mine")
        assert await store.get("lease") == b"mine"

    run(work)


@pytest.mark.parametrize(
    "fault", [RESET, RESPONSE_LOST, STORED_BUT_500], ids=["reset", "response lost", "stored but 500"]
)
def test_second_create_fails_in_spite_of_faults(run: Run, relay: FaultyServer, fault: Fault) -> None:
    """Also with the same bytes: the signature tells who was first."""

    async def work(store: Store) -> None:
        await store.create("lease", b"same")
        relay.plan(fault, method="PUT")
        with pytest.raises(ObjectExists):
            await store.create("lease", b"same")

    run(work)


def test_slow_transfer_does_not_time_out(run: Run, relay: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeout counts from byte to byte, not for the whole object."""
    monkeypatch.setattr(cloud, "STALL_TIMEOUT", timedelta(seconds=3))

    async def work(store: Store) -> None:
        relay.plan(Fault(reaches_store=True, seconds_per_byte=0.5))
        assert await store.get("there") == b"0123456789"
        assert len(relay.seen) == 1

    run(work)


def test_stalled_transfer_times_out(run: Run, relay: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud, "STALL_TIMEOUT", timedelta(seconds=1))
    monkeypatch.setattr("rayhistory.storage.s3.retry_config", lambda: {"max_retries": 0})

    async def work(store: Store) -> None:
        relay.plan(always=Fault(reaches_store=True, seconds_per_byte=5))
        with pytest.raises(StoreUnavailable):
            await store.get("there")

    run(work)


def test_unreachable_store_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayhistory.storage.s3.retry_config", lambda: {"max_retries": 1})
    monkeypatch.setenv("S3_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    async def work() -> None:
        await assert_every_operation_raises(
            open_store(resolve(SERVER, {"setting_store": "s3://bucket"})[0]), StoreUnavailable
        )

    asyncio.run(work())


def test_missing_bucket_is_an_error_not_an_empty_store(moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does not create it; the collector does, at its first write."""
    monkeypatch.setenv("S3_ENDPOINT", moto)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    settings, _ = resolve(SERVER, {"setting_store": f"s3://missing-{secrets.token_hex(8)}"})

    async def work() -> None:
        server = open_store(settings)
        for call in (server.list_folder(""), server.get("a"), server.put("a", b""), server.create("a", b"")):
            with pytest.raises(BucketNotFound, match="bucket not found"):
                await call
        collector = open_store(settings, writable=True)
        await collector.create("a", b"1")
        assert await server.get("a") == b"1"

    asyncio.run(work())


def test_first_writes_at_once_create_the_bucket_once(moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_ENDPOINT", moto)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    settings, _ = resolve(SERVER, {"setting_store": f"s3://missing-{secrets.token_hex(8)}"})
    requests: list[str] = []
    open_url = urllib.request.urlopen

    def count(request: urllib.request.Request, timeout: float) -> object:
        requests.append(request.get_method())
        return open_url(request, timeout=timeout)

    monkeypatch.setattr(urllib.request, "urlopen", count)

    async def work() -> None:
        store = open_store(settings, writable=True)
        await asyncio.gather(*(store.put(f"key-{number}", b"1") for number in range(20)))
        assert await store.get("key-19") == b"1"

    asyncio.run(work())
    assert requests == ["PUT"]


def test_short_process_exits_cleanly(run: Run, relay: FaultyServer) -> None:
    """Threads of the client may still run at exit."""
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


@pytest.fixture
def oss(monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    with serving(Double(oss_double.OssBucket, ("a-bucket",))) as double:
        for name, value in {
            "OSS_REGION": oss_double.REGION,
            "OSS_ENDPOINT": double.url,
            "ALIBABA_CLOUD_ACCESS_KEY_ID": oss_double.KEY,
            "ALIBABA_CLOUD_ACCESS_KEY_SECRET": oss_double.SECRET,
        }.items():
            monkeypatch.setenv(name, value)
        yield double


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (503, "ServiceUnavailable", StoreThrottled),
        (408, "RequestTimeout", StoreUnavailable),
        (400, "ExpiredToken", StoreDenied),
        (409, "OperationAborted", StoreUnavailable),
        (409, "FileAlreadyExists", ObjectExists),
    ],
)
def test_oss_errors_are_classified_as_those_of_other_stores(
    oss: Double, status: int, code: str, expected: type[Exception]
) -> None:
    async def work() -> None:
        store = open_store(resolve(SERVER, {"setting_store": "oss://a-bucket"})[0])
        oss.faults = [ErrorReply(status, code)] * 8
        with pytest.raises(expected):
            await store.put("new", b"1")
        await store.close()

    asyncio.run(work())


def test_oss_error_of_a_listing_has_no_empty_key(oss: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        with faulty(oss.url) as relay:
            monkeypatch.setenv("OSS_ENDPOINT", relay.url)
            store = open_store(resolve(SERVER, {"setting_store": "oss://a-bucket"})[0])
            relay.plan(always=RESET)
            with pytest.raises(StoreUnavailable) as root:
                await store.list_folder("")
            with pytest.raises(StoreUnavailable) as folder:
                await store.list_folder("a/b")
            await store.close()
        assert str(root.value).startswith("oss://a-bucket: ")
        assert ": :" not in str(root.value)
        assert str(folder.value).startswith("oss://a-bucket: a/b: ")

    asyncio.run(work())


def test_oss_honors_retry_after(oss: Double) -> None:
    """obstore does not pass Retry-After on, so only OSS can."""

    async def work() -> None:
        store = open_store(resolve(SERVER, {"setting_store": "oss://a-bucket"})[0])
        await store.put("there", b"1")
        oss.faults = [ErrorReply(503, "DownloadTrafficRateLimitExceeded", headers={"Retry-After": "2"})]
        started = asyncio.get_running_loop().time()
        assert await store.get("there") == b"1"
        assert asyncio.get_running_loop().time() - started >= 2
        oss.faults = [ErrorReply(403, "AccessDenied")] * 8
        await assert_every_operation_raises(store, StoreDenied)
        oss.faults = []
        with pytest.raises(ObjectNotFound):
            await store.get("nothing")
        with pytest.raises(BucketNotFound):
            await open_store(resolve(SERVER, {"setting_store": "oss://other"})[0]).list_folder("")
        await store.close()

    asyncio.run(work())
