"""Lists that are longer than Ray's longest: all rows of all pages, in the memory of one portion."""

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

from guarded import program
from manytasks import SMALL_JOB, keep_many
from rayhistory.server.app import create_app
from rayhistory.server.kept import FEW, KeptAnswers
from rayhistory.server.routes import state
from recorded_sample import REF, serving, settings_for

MANY = 30_000
PLAIN = {"Accept-Encoding": "identity"}
LISTS = ("tasks", "actors", "nodes", "workers", "placement_groups", "cluster_events")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("many")
    keep_many(directory, MANY)
    return directory


@pytest.fixture(scope="module")
def many(directory: Path) -> Iterator[TestClient]:
    with TestClient(create_app(settings_for(directory)), base_url=f"http://testserver{REF.url}") as client:
        yield client


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("sample")) as client:
        yield client


def listed(client: TestClient, query: str) -> dict[str, Any]:
    answer = client.get(f"api/v0/tasks?{query}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["data"]["result"]
    return found


def test_a_long_list_has_the_rows_of_all_pages(many: TestClient) -> None:
    whole, first = listed(many, "limit=1000000"), listed(many, "limit=10000")
    pages: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        asked = {"columns": ",".join(whole["result"][0]), "sort": "task_id", "limit": "10000", "cursor": cursor}
        page = many.get("api/history/rows/tasks", params=asked).json()
        pages, cursor = pages + page["rows"], page["next"]
    assert (whole["total"], whole["num_filtered"], len(pages)) == (MANY, MANY, MANY)
    assert [row["task_id"] for row in whole["result"]] == [row["task_id"] for row in pages]
    assert whole["result"][:10_000] == first["result"]
    cut = listed(many, "limit=12345")
    assert (cut["num_filtered"], cut["result"]) == (MANY, whole["result"][:12_345])


@pytest.mark.parametrize("resource", LISTS)
@pytest.mark.parametrize("query", ["", "&detail=1", "&filter_keys=state&filter_predicates=%3D&filter_values=DEAD"])
def test_a_list_is_the_same_to_the_letter_when_it_is_sent_in_pieces(
    sample: TestClient, monkeypatch: pytest.MonkeyPatch, resource: str, query: str
) -> None:
    address = f"api/v0/{resource}?limit=1000{query}"
    at_once = sample.get(address)
    assert sample.get(address, headers=PLAIN).text == at_once.text
    monkeypatch.setattr(state, "_LONGEST_KEPT", 0)
    monkeypatch.setattr("rayhistory.index.query._AT_ONCE", 3)
    in_pieces = sample.get(f"{address}&timeout=31")  # what was kept is the answer to another question
    assert at_once.text == in_pieces.text
    assert at_once.status_code == in_pieces.status_code
    if at_once.status_code == 200:
        assert ("etag" in at_once.headers, "etag" in in_pieces.headers) == (True, False)
        assert in_pieces.headers["content-encoding"] == "gzip"
        plain = sample.get(f"{address}&timeout=31", headers=PLAIN)
        assert (plain.text, "content-encoding" in plain.headers) == (at_once.text, False)
        assert sample.head(f"{address}&timeout=31").content == b""


def test_a_long_list_that_cannot_be_read_to_its_end_has_no_proper_end(tmp_path: Path) -> None:
    keep_many(tmp_path, MANY)
    with program(tmp_path) as address, httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
        with (
            pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"),
            client.stream("GET", f"{REF.url}api/v0/tasks?detail=1&limit=1000000", headers=PLAIN) as answer,
        ):
            for number, _ in enumerate(answer.iter_raw()):
                if number == 0:
                    (tmp_path / "store").rename(tmp_path / "away")
                    shutil.rmtree(tmp_path / "cache" / "index")
        assert answer.status_code == 200


def test_a_long_list_needs_the_memory_of_one_portion(tmp_path: Path) -> None:
    """Measured at the server's process, which has given some portions before."""
    keep_many(tmp_path, 5 * MANY)
    with program(tmp_path) as address, httpx.Client(base_url=address, timeout=120, trust_env=False) as client:
        client.get(f"{REF.url}api/v0/tasks?limit=20000").raise_for_status()
        before, size = peak(tmp_path), 0
        with client.stream("GET", f"{REF.url}api/v0/tasks?limit=1000000", headers=PLAIN) as answer:
            for block in answer.iter_raw():
                size += len(block)
        grown = peak(tmp_path) - before
    assert size > 5 * MANY * 300
    assert grown < size / 2, f"{grown >> 20} MiB more for an answer of {size >> 20} MiB"


LARGE = (
    "api/v0/tasks?detail=1&limit=10000&timeout={}",
    "api/v0/tasks?detail=1&limit=20000&timeout={}",
    "api/v0/tasks/timeline?timeout={}",
    "api/history/rows/tasks?limit=10000&sort=-end_time_ms&where=name!={}",
)


@pytest.mark.parametrize("address", LARGE)
def test_many_who_ask_for_much_need_the_memory_of_one(tmp_path: Path, address: str) -> None:
    """They wait for each other: none would have an answer sooner. What differs in their questions is kept for none."""
    keep_many(tmp_path, MANY)
    with program(tmp_path) as server, ThreadPoolExecutor(12) as visitors:

        def ask(number: int) -> int:
            return len(httpx.get(f"{server}{REF.url}{address.format(number)}", timeout=120, trust_env=False).text)

        sizes = {ask(number) for number in range(2)}
        alone = peak(tmp_path)
        sizes |= set(visitors.map(ask, range(2, 14)))
        grown = peak(tmp_path) - alone
    assert len(sizes) == 1
    assert sizes.pop() > 15_000_000
    assert grown < 64 << 20, f"{grown >> 20} MiB more than the {alone >> 20} MiB for one"


def test_small_answers_do_not_wait_for_large_ones(sample: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows were asked for: there are not so many, or not so many that pass."""

    def no_turn(_: KeptAnswers, rows: int) -> AbstractAsyncContextManager[None]:
        assert rows <= FEW
        return nullcontext()

    monkeypatch.setattr(KeptAnswers, "place", no_turn)
    lists = [f"api/v0/{resource}?limit=20000&timeout=32" for resource in LISTS]
    for address in (*lists, "api/v0/tasks/timeline", "logical/actors", "api/history/rows/gaps?limit=10000"):
        assert sample.get(address).status_code == 200


def test_a_small_part_of_much_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_many(tmp_path, 3 * FEW, small_job=5)
    turns = []
    monkeypatch.setattr(KeptAnswers, "place", lambda _, rows: turns.append(rows) or nullcontext())
    job = "&filter_keys=job_id&filter_predicates=%3D&filter_values="
    with TestClient(create_app(settings_for(tmp_path)), base_url=f"http://testserver{REF.url}") as client:
        for name in (SMALL_JOB, "01000000"):
            listed(client, f"detail=1&limit=10000{job}{name}")
    assert turns == [5, 3 * FEW - 5]


def test_for_whoever_has_left_while_waiting_nothing_is_made(tmp_path: Path) -> None:
    keep_many(tmp_path, 3 * FEW)
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


def test_what_a_reader_who_left_has_begun_is_waited_for() -> None:
    """It is done in a thread, which nobody can stop."""
    at_work = most_at_work = 0

    def work() -> bytes:
        nonlocal at_work, most_at_work
        at_work += 1
        most_at_work = max(most_at_work, at_work)
        time.sleep(0.05)
        at_work -= 1
        return b"piece"

    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield await asyncio.to_thread(work)

    async def read_all() -> None:
        answers = KeptAnswers()

        async def read() -> None:
            with anyio.move_on_after(0.02):
                async for _ in answers.in_turns(pieces(), 2 * FEW):
                    pass

        await asyncio.gather(*(read() for _ in range(4)))
        async for _ in answers.in_turns(pieces(), 2 * FEW):
            break

    asyncio.run(read_all())
    assert most_at_work == 1


def peak(directory: Path) -> int:
    """The most memory that the program had, in bytes."""
    status = Path(f"/proc/{(directory / 'pid').read_text()}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10
