"""Lists above Ray's limit: all rows, in the memory of one batch."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from starlette.testclient import TestClient

from rayhistory.server.app import create_app
from rayhistory.server.http.response_cache import LARGE_RESPONSE_ROWS, ResponseCache
from support.many_tasks import SMALL_JOB, store_many_tasks
from support.recorded_sample import REF, serving, settings_for
from support.two_namespaces import run_historyserver

MANY = 30_000
PLAIN = {"Accept-Encoding": "identity"}
LISTS = ("tasks", "actors", "nodes", "workers", "placement_groups", "cluster_events")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("many")
    store_many_tasks(directory, MANY)
    return directory


@pytest.fixture(scope="module")
def many(directory: Path) -> Iterator[TestClient]:
    with TestClient(create_app(settings_for(directory)), base_url=f"http://testserver{REF.url}") as client:
        yield client


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("sample")) as client:
        yield client


def get_tasks(client: TestClient, query: str) -> dict[str, Any]:
    response = client.get(f"api/v0/tasks?{query}")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()["data"]["result"]
    return found


def test_long_list_has_the_rows_of_all_pages(many: TestClient) -> None:
    whole, first = get_tasks(many, "limit=1000000"), get_tasks(many, "limit=10000")
    pages: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        requested = {"columns": ",".join(whole["result"][0]), "sort": "task_id", "limit": "10000", "cursor": cursor}
        page = many.get("api/history/rows/tasks", params=requested).json()
        pages, cursor = pages + page["rows"], page["next"]
    assert (whole["total"], whole["num_filtered"], len(pages)) == (MANY, MANY, MANY)
    assert [row["task_id"] for row in whole["result"]] == [row["task_id"] for row in pages]
    assert whole["result"][:10_000] == first["result"]
    cut = get_tasks(many, "limit=12345")
    assert (cut["num_filtered"], cut["result"]) == (MANY, whole["result"][:12_345])


@pytest.mark.parametrize("resource", LISTS)
@pytest.mark.parametrize("query", ["", "&detail=1", "&filter_keys=state&filter_predicates=%3D&filter_values=DEAD"])
def test_streamed_list_equals_the_cached_list(
    sample: TestClient, monkeypatch: pytest.MonkeyPatch, resource: str, query: str
) -> None:
    address = f"api/v0/{resource}?limit=1000{query}"
    cached = sample.get(address)
    assert sample.get(address, headers=PLAIN).text == cached.text
    monkeypatch.setattr("rayhistory.server.http.response_cache.MAX_CACHED_ROWS", 0)
    monkeypatch.setattr("rayhistory.index.query.open_index._BATCH_ROWS", 3)
    streamed = sample.get(f"{address}&timeout=31")  # another query, because the first response is cached
    assert cached.text == streamed.text
    assert cached.status_code == streamed.status_code
    if cached.status_code == 200:
        assert ("etag" in cached.headers, "etag" in streamed.headers) == (True, False)
        assert streamed.headers["content-encoding"] == "gzip"
        plain = sample.get(f"{address}&timeout=31", headers=PLAIN)
        assert (plain.text, "content-encoding" in plain.headers) == (cached.text, False)
        assert sample.head(f"{address}&timeout=31").content == b""


def test_long_list_is_aborted_when_the_store_fails(tmp_path: Path) -> None:
    store_many_tasks(tmp_path, MANY)
    with run_historyserver(tmp_path) as address, httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
        with (
            pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"),
            client.stream("GET", f"{REF.url}api/v0/tasks?detail=1&limit=1000000", headers=PLAIN) as response,
        ):
            for number, _ in enumerate(response.iter_raw()):
                if number == 0:
                    (tmp_path / "store").rename(tmp_path / "away")
                    shutil.rmtree(tmp_path / "cache" / "index")
        assert response.status_code == 200


def test_long_list_needs_the_memory_of_one_batch(tmp_path: Path) -> None:
    """Measured at a server process that has served some batches before."""
    store_many_tasks(tmp_path, 5 * MANY)
    with run_historyserver(tmp_path) as address, httpx.Client(base_url=address, timeout=120, trust_env=False) as client:
        client.get(f"{REF.url}api/v0/tasks?limit=20000").raise_for_status()
        before, size = peak(tmp_path), 0
        with client.stream("GET", f"{REF.url}api/v0/tasks?limit=1000000", headers=PLAIN) as response:
            for block in response.iter_raw():
                size += len(block)
        grown = peak(tmp_path) - before
    assert size > 5 * MANY * 300
    assert grown < size / 2, f"{grown >> 20} MiB more for a response of {size >> 20} MiB"


LARGE = (
    "api/v0/tasks?detail=1&limit=10000&timeout={}",
    "api/v0/tasks?detail=1&limit=20000&timeout={}",
    "api/v0/tasks/timeline?timeout={}",
    "api/history/rows/tasks?limit=10000&sort=-end_time_ms&where=name!={}",
)


@pytest.mark.parametrize("address", LARGE)
def test_concurrent_large_responses_need_the_memory_of_one(tmp_path: Path, address: str) -> None:
    """Large responses are made one at a time. Every request is different, so none is cached."""
    store_many_tasks(tmp_path, 20_000)
    with run_historyserver(tmp_path) as server, ThreadPoolExecutor(6) as clients:

        def fetch(number: int) -> int:
            return len(httpx.get(f"{server}{REF.url}{address.format(number)}", timeout=120, trust_env=False).text)

        sizes = {fetch(number) for number in range(2)}
        alone = peak(tmp_path)
        sizes |= set(clients.map(fetch, range(2, 8)))
        grown = peak(tmp_path) - alone
    assert len(sizes) == 1
    assert sizes.pop() > 15_000_000
    assert grown < 64 << 20, f"{grown >> 20} MiB more than the {alone >> 20} MiB for one"


def test_small_responses_do_not_wait_for_large_ones(sample: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size is the number of matching rows, not the limit."""

    def check_small(_: ResponseCache, rows: int) -> AbstractAsyncContextManager[None]:
        assert rows <= LARGE_RESPONSE_ROWS
        return nullcontext()

    monkeypatch.setattr(ResponseCache, "large_response_slot", check_small)
    lists = [f"api/v0/{resource}?limit=20000&timeout=32" for resource in LISTS]
    for address in (*lists, "api/v0/tasks/timeline", "logical/actors", "api/history/rows/gaps?limit=10000"):
        assert sample.get(address).status_code == 200


def test_small_result_of_a_large_table_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_many_tasks(tmp_path, 3 * LARGE_RESPONSE_ROWS, small_job=5)
    slots: list[int] = []

    def record(_: ResponseCache, rows: int) -> nullcontext[None]:
        slots.append(rows)
        return nullcontext()

    monkeypatch.setattr(ResponseCache, "large_response_slot", record)
    job = "&filter_keys=job_id&filter_predicates=%3D&filter_values="
    with TestClient(create_app(settings_for(tmp_path)), base_url=f"http://testserver{REF.url}") as client:
        for name in (SMALL_JOB, "01000000"):
            get_tasks(client, f"detail=1&limit=10000{job}{name}")
    assert slots == [5, 3 * LARGE_RESPONSE_ROWS - 5]


def test_response_is_skipped_for_a_disconnected_client(tmp_path: Path) -> None:
    store_many_tasks(tmp_path, 3 * LARGE_RESPONSE_ROWS)
    app = create_app(settings_for(tmp_path))
    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    with TestClient(app) as client:
        path, query = f"{REF.url}api/v0/tasks", b"limit=10000"
        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query,
                 "root_path": "", "headers": [(b"host", b"testserver")], "scheme": "http", "server": ("testserver", 80),
                 "client": ("127.0.0.1", 1), "http_version": "1.1", "app": app, "state": {}}  # fmt: skip
        assert client.portal
        client.portal.call(app, scope, receive, send)
    assert [message.get("status") for message in sent] == [499, None]


def test_work_of_a_disconnected_client_finishes_before_the_next() -> None:
    """The work runs in a thread, which cannot be cancelled."""
    active = max_active = 0

    def work() -> bytes:
        nonlocal active, max_active
        active += 1
        max_active = max(max_active, active)
        time.sleep(0.05)
        active -= 1
        return b"chunk"

    async def chunks() -> AsyncIterator[bytes]:
        while True:
            yield await asyncio.to_thread(work)

    async def read_all() -> None:
        responses = ResponseCache()

        async def read() -> None:
            with anyio.move_on_after(0.02):
                async for _ in responses.one_large_at_a_time(chunks(), 2 * LARGE_RESPONSE_ROWS):
                    pass

        await asyncio.gather(*(read() for _ in range(4)))
        async for _ in responses.one_large_at_a_time(chunks(), 2 * LARGE_RESPONSE_ROWS):
            break

    asyncio.run(read_all())
    assert max_active == 1


def peak(directory: Path) -> int:
    """Return the peak memory of the process in bytes."""
    status = Path(f"/proc/{(directory / 'pid').read_text()}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10
