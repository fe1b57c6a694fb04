"""A visitor with rights to one namespace, whose sessions and requests must not stop the server for the others."""

import asyncio
import io
import re
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn
from starlette.routing import Route
from starlette.testclient import TestClient

from rayhistory.index.query.query import KEY_COLUMNS
from rayhistory.server.api_routes import SESSION_ROUTES
from rayhistory.server.app import create_app
from rayhistory.server.http import responses
from support.large_tables import store_large_tables
from support.recorded_sample import REF, serving, settings_for, store_indexed_sample
from support.server_process import running_server
from support.two_namespaces import bearer, run_historyserver, write_access_file

EVENTS = 200_000
ROWS = 25_000
MAX_GROWTH_BYTES = 150 << 20
MAX_ENCODED_ON_LOOP_BYTES = 100 << 10
VISITORS = 20
_PARAMETERS = {
    "node": ["0" * 56],
    "actor": ["0" * 32],
    "job": ["00000000"],
    "table": list(KEY_COLUMNS),
    "media_type": ["file"],
    "name": ["instance"],
    "page:path": ["d/x"],
    "uid": ["rayDefaultDashboard"],
    "panel": ["41"],
}
_QUERIES = {"/api/history/rows/{table}": ["?limit=10000"], "/nodes": ["", "?view=hostnamelist"]}
_LONG_LISTS = re.compile(r"/api/v0/\w+")


def request_paths() -> Iterator[str]:
    """Yield at least one request for every route below a session, and all rows where a list has a limit."""
    for route in SESSION_ROUTES:
        if not isinstance(route, Route):
            continue
        names = re.findall(r"{([\w:]+)}", route.path)
        queries = ["?limit=20000&detail=1"] if _LONG_LISTS.fullmatch(route.path) else [""]
        for values in product(*(_PARAMETERS[name] for name in names)):
            path = route.path
            for name, value in zip(names, values, strict=True):
                path = path.replace(f"{{{name}}}", value)
            yield from (path.lstrip("/") + query for query in _QUERIES.get(route.path, queries))


def peak_memory(directory: Path) -> int:
    status = Path(f"/proc/{(directory / 'pid').read_text()}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


@pytest.fixture(scope="module")
def long_lists(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The directory and the address of a server for a session whose lists are all long."""
    directory = tmp_path_factory.mktemp("long-lists")
    store_large_tables(directory, ROWS, EVENTS)
    tokens = "".join(f"token visitor-{number} {token_of(number)} default\n" for number in range(VISITORS))
    flags = ("--auth=token", f"--access-file={write_access_file(directory, tokens)}", "--rate-limit=0")
    with run_historyserver(directory, *flags) as address:
        yield directory, address


def token_of(number: int) -> str:
    return f"token-of-visitor-number-{number:04d}"


def visitor(address: str, number: int = 0) -> httpx.Client:
    headers = bearer(token_of(number))
    return httpx.Client(base_url=address + REF.url, timeout=300, trust_env=False, headers=headers)


@pytest.mark.slow
def test_no_route_needs_memory_for_all_rows_of_a_long_list(long_lists: tuple[Path, str]) -> None:
    """200,000 event lines took 820 MiB; other lists, of nodes, jobs or actors, grew as well."""
    directory, address = long_lists
    with visitor(address) as client:
        client.get("api/v0/tasks?limit=10").raise_for_status()
        before, grown = peak_memory(directory), {}
        for path in request_paths():
            with client.stream("GET", path) as response:
                for _ in response.iter_raw():
                    pass
            assert response.status_code < 500 or path.startswith("api/v0/logs"), (path, response.status_code)
            grown[path] = (peak_memory(directory) - before) >> 20
    assert max(grown.values()) < MAX_GROWTH_BYTES >> 20, f"MiB more after each request: {grown}"


@pytest.mark.slow
def test_twenty_visitors_download_whole_tables_at_once_in_bounded_memory(long_lists: tuple[Path, str]) -> None:
    directory, address = long_lists
    with visitor(address) as client:
        client.get("api/history/rows/cluster_events.zip").raise_for_status()
    before = peak_memory(directory)
    with ThreadPoolExecutor(VISITORS) as pool:
        downloads = set(pool.map(partial(download, address), range(VISITORS)))
    assert len(downloads) == 1
    assert (peak_memory(directory) - before) >> 20 < MAX_GROWTH_BYTES >> 20


def download(address: str, number: int) -> str:
    """Return a digest of the rows. A server that sends too many files at once asks to wait."""
    with visitor(address, number) as client:
        while (response := client.get("api/history/rows/cluster_events.zip")).status_code == 429:
            assert response.headers["X-RayHistory-Error"] == "rate_limited"
            assert int(response.headers["Retry-After"]) > 0
            time.sleep(0.1)
        with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
            return ",".join(f"{info.filename}:{info.CRC}" for info in archive.infolist())


@pytest.mark.slow
def test_no_route_encodes_a_list_on_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other visitors would wait for it."""
    store_large_tables(tmp_path, 2_000, 2_000)
    encode, on_loop = msgspec.json.encode, Counter[str]()
    with TestClient(create_app(settings_for(tmp_path)), base_url=f"http://testserver{REF.url}") as client:
        assert client.portal
        loop_thread, path = client.portal.call(threading.get_ident), ""

        def counting_encode(*args: Any, **options: Any) -> bytes:
            encoded = encode(*args, **options)
            if threading.get_ident() == loop_thread:
                on_loop[path] += len(encoded)
            return encoded

        monkeypatch.setattr(msgspec.json, "encode", counting_encode)
        monkeypatch.setattr(responses, "_ENCODER", SimpleNamespace(encode=counting_encode))
        for path in request_paths():
            client.get(path)
    assert {path: size for path, size in on_loop.items() if size > MAX_ENCODED_ON_LOOP_BYTES} == {}


_FILTER = "&filter_keys=name&filter_predicates=!%3D&filter_values=x"
TOO_MANY = {
    "filters of rows": "api/history/rows/tasks?" + "where=name!=x&" * 3_500,
    "filters of Ray's lists": "api/v0/tasks?limit=1" + _FILTER * 1_000,
    "filters of Ray's summaries": "api/v0/tasks/summarize?" + _FILTER * 1_000,
    "columns of rows": "api/history/rows/tasks?columns=" + ",".join(["name"] * 3_500),
    "labels of metrics": "api/history/metrics?name=x" + "".join(f"&label{number}=x" for number in range(3_500)),
    "words of a search": "http://testserver/api/history/sessions?q=" + "+".join(["x"] * 3_500),
}


@pytest.mark.parametrize("what", TOO_MANY)
def test_too_many_values_in_one_request_are_refused(client: TestClient, what: str) -> None:
    """A request with 3,500 filters took 1.9 s to plan."""
    response = client.get(TOO_MANY[what])
    assert (response.status_code, response.headers["X-RayHistory-Error"]) == (400, "invalid_request")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("visitor")) as client:
        yield client


_SLOW_BUILDS = """
import pathlib, sys, time
if "rayhistory.index.fold.as_of" in sys.orig_argv and not pathlib.Path({released!r}).exists():
    time.sleep(3600)
"""


@pytest.mark.slow
def test_abandoned_points_in_time_keep_nobody_waiting(tmp_path: Path) -> None:
    """Builds of points that nobody waits for any more end at once: 16 of them made others wait for 11 s."""
    store_indexed_sample(settings_for(tmp_path))
    released = tmp_path / "released"
    at_start = _SLOW_BUILDS.format(released=str(released))
    with running_server(tmp_path / "store", tmp_path / "work", at_start=at_start) as address:
        with httpx.Client(base_url=address, timeout=300, trust_env=False) as client:
            while (response := client.get(f"{REF.url}api/history/overview")).status_code == 503:  # not indexed yet
                pass
            last_ms = response.raise_for_status().json()["last_ms"]

        def url(number: int) -> str:
            return f"{REF.url[:-1]}@{last_ms - 10_000 - 100 * number}/api/jobs/"

        for number in range(16):
            with pytest.raises(httpx.ReadTimeout):
                httpx.get(address + url(number), timeout=httpx.Timeout(60, read=0.2), trust_env=False)
        released.touch()
        statuses = [httpx.get(address + url(99), timeout=300, trust_env=False).status_code for _ in range(2)]
    assert 200 in statuses  # the second request, if the machine was too busy for the first


def test_abandoned_queries_keep_nobody_waiting(tmp_path: Path) -> None:
    """PromQL queries waited in one queue, and were evaluated even if nobody waited for them any more."""
    settings = settings_for(tmp_path)
    store_indexed_sample(settings)

    async def run() -> None:
        app = create_app(settings)
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None))
        serving_until_exit = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        address = "http://{}:{}".format(*server.servers[0].sockets[0].getsockname())
        async with httpx.AsyncClient(base_url=address, timeout=60, trust_env=False) as client:

            async def query(number: int, timeout_s: float | None = None) -> int:
                path = f"{REF.url}prometheus/api/v1/query?query=vector({number})"
                return (await client.get(path, timeout=timeout_s or 60)).status_code

            assert await query(0) == 200
            turns = app.state.query_cache._evaluations
            async with turns.take("ada"), turns.take("ada"):
                left = await asyncio.gather(*(query(number, 0.5) for number in range(1, 17)), return_exceptions=True)
                assert {type(each) for each in left} == {httpx.ReadTimeout}
                async with asyncio.timeout(60):
                    while any(not each.done() for requests in turns._waiting.values() for each in requests):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
            assert await query(17) == 200
        server.should_exit = True
        await serving_until_exit

    asyncio.run(run())
