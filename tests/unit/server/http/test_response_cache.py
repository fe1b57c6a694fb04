"""Answers cost nothing twice: they are kept, tagged and compressed, and never outlive what they were made from."""

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
from rayhistory.layout import Layout
from rayhistory.server.app import create_app
from rayhistory.server.kept import KeptAnswers, can_be_kept
from rayhistory.storage.local import LocalStore
from recorded_sample import REF, keep_sample, serving, settings_for

TASKS = "api/v0/tasks?detail=1"
AFTER_THE_END = (1894770340000, 1994770340000)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("kept")) as client:
        yield client


def test_a_client_that_has_the_answer_is_told_so(client: TestClient) -> None:
    first = client.get(TASKS)
    assert (first.status_code, first.headers["cache-control"]) == (200, "no-cache")
    again = client.get(TASKS, headers={"If-None-Match": f'"other", {first.headers["etag"]}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert client.get(TASKS, headers={"If-None-Match": '"other"'}).json() == first.json()


def test_other_questions_moments_and_readers_have_other_tags(client: TestClient) -> None:
    moments = [f"http://testserver{REF.url.rstrip('/')}@{moment}/{TASKS}" for moment in (1794770340000, *AFTER_THE_END)]
    tags = [
        client.get(TASKS).headers["etag"],
        client.get(TASKS + "&limit=3").headers["etag"],
        client.get("api/v0/actors?detail=1").headers["etag"],
        client.get(TASKS, headers={"User-Agent": "Mozilla/5.0"}).headers["etag"],
        *(client.get(moment).headers["etag"] for moment in moments),
    ]
    assert len(set(tags)) == len(tags)


def test_an_address_that_looks_like_another_has_its_own_answer(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        actor = client.get("api/v0/actors").json()["data"]["result"]["result"][0]["actor_id"]
        strange = client.get(f"logical/actors/{actor[:4]}%09{actor[4:]}")
        found = client.get(f"logical/actors/{actor}")
        assert found.json()["data"]["detail"]["actorId"] == actor != strange.text
        assert found.headers["etag"] != strange.headers.get("etag")


def test_large_answers_are_compressed_for_those_who_can_read_that(client: TestClient) -> None:
    plain = client.get(TASKS, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    for accepted in ("gzip, deflate, br, zstd", "br;q=1.0, gzip;q=0.8", "*"):
        packed = client.get(TASKS, headers={"Accept-Encoding": accepted})
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.headers["vary"] == "Accept-Encoding"
        assert int(packed.headers["content-length"]) < len(plain.content) / 4
        assert packed.content == plain.content
    assert "content-encoding" not in client.get(TASKS, headers={"Accept-Encoding": "gzip;q=0, br"}).headers
    assert "content-encoding" not in client.get("timezone").headers


def test_mistakes_and_logs_have_no_tag(client: TestClient) -> None:
    for address in ("api/v0/tasks?limit=x", "api/jobs/none", "api/v0/logs?node_id=none", "api/v0/tasks/timeline"):
        assert "etag" not in client.get(address).headers
    assert client.get("api/v0/tasks?limit=x", headers={"If-None-Match": "*"}).status_code == 400


def test_an_outage_is_not_hidden_by_what_is_kept_nor_kept_itself(tmp_path: Path) -> None:
    """The session is gone for as long as the store is, and comes back with it."""

    class Store(LocalStore):
        away = False

        async def list_folder(self, prefix: str):  # type: ignore[no-untyped-def]
            if self.away:
                raise StoreUnavailable("the store is away")
            return await super().list_folder(prefix)

    settings = settings_for(tmp_path)
    keep_sample(settings)
    store = Store(tmp_path / "store")
    with TestClient(create_app(settings, store), base_url=f"http://testserver{REF.url}") as client:
        store.away = True
        lost = client.get(TASKS)
        assert lost.status_code == 503
        assert "etag" not in lost.headers
        store.away = False
        deadline = time.monotonic() + 60
        while (found := client.get(TASKS)).status_code != 200 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert found.json()["data"]["result"]["total"] == 23


def test_an_index_that_was_built_again_has_new_answers(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    keep_sample(settings)
    tags = []
    for _ in range(2):
        with TestClient(create_app(settings), base_url=f"http://testserver{REF.url}") as client:
            answer = client.get("api/v0/nodes", headers={"If-None-Match": ", ".join(tags)})
            assert answer.status_code == 200
            tags.append(answer.headers["etag"])
        shutil.rmtree(tmp_path / "store" / Layout(settings.storage_root_dir).index_prefix(REF))
    assert tags[0] != tags[1]


def test_what_is_kept_stays_within_its_budget_and_the_oldest_goes_first() -> None:
    async def work() -> None:
        answers = KeptAnswers(budget=3000)
        for name in ("a", "b", "c"):
            await answers.keep(name, Response(name * 1000))
            answers.get("a")
        await answers.keep("d", Response("d" * 1000))
        assert [answers.get(name) is not None for name in "abcd"] == [True, False, True, True]
        large = await answers.keep("e", Response(bytes(range(256)) * 10_000))
        assert gzip.decompress(large.body) == bytes(range(256)) * 10_000

    asyncio.run(work())


def test_only_plain_good_answers_are_kept() -> None:
    assert can_be_kept(Response("x"))
    for answer in (Response("x", 500), Response("x", 200, {"Content-Disposition": "attachment"}),
                   StreamingResponse(iter(["x"])), PlainTextResponse("x", 404)):  # fmt: skip
        assert not can_be_kept(answer)


def test_who_asks_the_same_at_the_same_time_waits_for_the_first() -> None:
    made = []

    async def ask(answers: KeptAnswers) -> None:
        async with answers.turn("tag"):
            if answers.get("tag") is None:
                made.append(1)
                await asyncio.sleep(0.01)
                await answers.keep("tag", Response("x"))

    async def work() -> None:
        answers = KeptAnswers()
        await asyncio.gather(*(ask(answers) for _ in range(5)))

    asyncio.run(work())
    assert made == [1]
