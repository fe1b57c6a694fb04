"""The response cache: ETags, compression, eviction, and no response that outlives its index."""

import asyncio
import gzip
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.testclient import TestClient

from rayhistory.errors import StoreUnavailable
from rayhistory.server.app import create_app
from rayhistory.server.http.response_cache import CachedResponse, ResponseCache, is_cacheable
from rayhistory.sessions import Layout
from rayhistory.storage.local import LocalStore
from support.recorded_sample import REF, serving, settings_for, store_sample

TASKS = "api/v0/tasks?detail=1"
AFTER_THE_END = (1894770340000, 1994770340000)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("cache")) as client:
        yield client


@pytest.mark.slow
def test_client_with_the_current_etag_gets_304(client: TestClient) -> None:
    first = client.get(TASKS)
    assert (first.status_code, first.headers["cache-control"]) == (200, "no-cache")
    second = client.get(TASKS, headers={"If-None-Match": f'"other", {first.headers["etag"]}'})
    assert (second.status_code, second.content, second.headers["etag"]) == (304, b"", first.headers["etag"])
    assert client.get(TASKS, headers={"If-None-Match": '"other"'}).json() == first.json()


def test_etag_depends_on_query_time_and_user_agent(client: TestClient) -> None:
    urls = [f"http://testserver{REF.url.rstrip('/')}@{as_of}/{TASKS}" for as_of in (1794770340000, *AFTER_THE_END)]
    etags = [
        client.get(TASKS).headers["etag"],
        client.get(TASKS + "&limit=3").headers["etag"],
        client.get("api/v0/actors?detail=1").headers["etag"],
        client.get(TASKS, headers={"User-Agent": "Mozilla/5.0"}).headers["etag"],
        *(client.get(url).headers["etag"] for url in urls),
    ]
    assert len(set(etags)) == len(etags)


@pytest.mark.slow
def test_similar_paths_have_their_own_responses(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        actor = client.get("api/v0/actors").json()["data"]["result"]["result"][0]["actor_id"]
        with_tab = client.get(f"logical/actors/{actor[:4]}%09{actor[4:]}")
        response = client.get(f"logical/actors/{actor}")
        assert response.json()["data"]["detail"]["actorId"] == actor != with_tab.text
        assert response.headers["etag"] != with_tab.headers.get("etag")


def test_large_responses_are_compressed_for_clients_that_accept_gzip(client: TestClient) -> None:
    plain = client.get(TASKS, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    for accepted in ("gzip, deflate, br, zstd", "br;q=1.0, gzip;q=0.8", "*"):
        compressed = client.get(TASKS, headers={"Accept-Encoding": accepted})
        assert compressed.headers["content-encoding"] == "gzip"
        assert compressed.headers["vary"] == "Accept-Encoding"
        assert int(compressed.headers["content-length"]) < len(plain.content) / 4
        assert compressed.content == plain.content
    assert "content-encoding" not in client.get(TASKS, headers={"Accept-Encoding": "gzip;q=0, br"}).headers
    assert "content-encoding" not in client.get("timezone").headers


def test_errors_and_logs_have_no_etag(client: TestClient) -> None:
    for path in ("api/v0/tasks?limit=x", "api/jobs/none", "api/v0/logs?node_id=none", "api/v0/tasks/timeline"):
        assert "etag" not in client.get(path).headers
    assert client.get("api/v0/tasks?limit=x", headers={"If-None-Match": "*"}).status_code == 400


@pytest.mark.slow
def test_store_outage_is_neither_hidden_by_the_cache_nor_cached(tmp_path: Path) -> None:
    class FlakyStore(LocalStore):
        unavailable = False

        async def list_folder(self, prefix: str):  # type: ignore[no-untyped-def]
            if self.unavailable:
                raise StoreUnavailable("connection refused")
            return await super().list_folder(prefix)

    settings = settings_for(tmp_path)
    store_sample(settings)
    store = FlakyStore(tmp_path / "store")
    with TestClient(create_app(settings, store), base_url=f"http://testserver{REF.url}") as client:
        store.unavailable = True
        failed = client.get(TASKS)
        assert failed.status_code == 503
        assert "etag" not in failed.headers
        store.unavailable = False
        deadline = time.monotonic() + 60
        while (response := client.get(TASKS)).status_code != 200 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert response.json()["data"]["result"]["total"] == 23


@pytest.mark.slow
def test_rebuilt_index_has_new_etags(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    store_sample(settings)
    etags: list[str] = []
    for _ in range(2):
        with TestClient(create_app(settings), base_url=f"http://testserver{REF.url}") as client:
            response = client.get("api/v0/nodes", headers={"If-None-Match": ", ".join(etags)})
            assert response.status_code == 200
            etags.append(response.headers["etag"])
        shutil.rmtree(tmp_path / "store" / Layout(settings.storage_root_dir).index_prefix(REF))
    assert etags[0] != etags[1]


def test_least_recently_used_response_is_evicted() -> None:
    async def work() -> None:
        cache = ResponseCache(max_bytes=3000)
        for name in ("a", "b", "c"):
            await cache.put(name, Response(name * 1000))
            cache.get("a")
        await cache.put("d", Response("d" * 1000))
        assert [cache.get(name) is not None for name in "abcd"] == [True, False, True, True]
        large = await cache.put("e", Response(bytes(range(256)) * 10_000))
        assert isinstance(large, CachedResponse)
        assert gzip.decompress(large.body) == bytes(range(256)) * 10_000

    asyncio.run(work())


def test_only_successful_plain_responses_are_cacheable() -> None:
    assert is_cacheable(Response("x"))
    for response in (Response("x", 500), Response("x", 200, {"Content-Disposition": "attachment"}),
                   StreamingResponse(iter(["x"])), PlainTextResponse("x", 404)):  # fmt: skip
        assert not is_cacheable(response)


def test_concurrent_requests_wait_for_the_first() -> None:
    computed = []

    async def request(cache: ResponseCache) -> None:
        async with cache.single_flight("etag"):
            if cache.get("etag") is None:
                computed.append(1)
                await asyncio.sleep(0.01)
                await cache.put("etag", Response("x"))

    async def work() -> None:
        cache = ResponseCache()
        await asyncio.gather(*(request(cache) for _ in range(5)))

    asyncio.run(work())
    assert computed == [1]
