"""Search in all log files of a session, through the history API."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.errors import StoreUnavailable
from rayhistory.storage.local import LocalStore
from support.recorded_sample import NODE, REF, serving

TASK = "c2668a65bda616c1ffffffffffffffffffffffff01000000"
ASYNC_ACTOR = "2859905c520b70af2f5c71b601000000"
RESTARTED_ACTOR = "52297792c799d4f52f1fb4a701000000"
FIRST_INCARNATION = "worker-5237e64ba57039f1c2747790bf54dbce772646fcbe19eb2281961873-01000000-16444"
WORKER = "worker-d08dbbc3dc8723a409171043cb3c6beeb647c44e3bacd34df892a9a5-01000000-16292"
JOB_WORKER = "worker-2c23437a918643461a120025f30b33cd8d6ef2d2789d699189cc3a50-03000000-16548"
OUTPUT = b"".join(b"%03d line\n" % i for i in range(40))
FILES = {
    f"{WORKER}.out": OUTPUT,
    f"{WORKER}.err": b"a line of stderr\n",
    f"{JOB_WORKER}.out": b"a line of another job\n",
    f"old/{FIRST_INCARNATION}.out": b"a line of the first incarnation\n",
    "job-driver-sub-ok.log": b"a line of the driver\n",
    "raylet.out": b"2026-11-15 19:18:30,000 a LINE <script>alert(1)</script>\n2026-11-15 19:18:10,000 earlier line\n",
    'named "日本" <b>.log': b"a line in a strange file\n",
    "binary.bin": bytes(range(256)) * 16 + b"\na line after bytes\n",
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("search"), FILES) as client:
        yield client


def search(client: TestClient, **params: Any) -> dict[str, Any]:
    response = client.get("api/history/search", params={"q": "line", **params})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def test_a_hit_has_its_place_time_and_address(client: TestClient) -> None:
    body = search(client, q="LINE <SCRIPT>")
    assert (body["next"], body["complete"], body["total"]) == (None, True, 1)
    assert body["scanned_bytes"] == sum(map(len, FILES.values()))
    assert body["hits"] == [
        {
            "node_id": NODE, "file": "raylet.out", "line": 1, "offset": 0,
            "text": "2026-11-15 19:18:30,000 a LINE <script>alert(1)</script>", "matches": [[26, 39]],
            "at_ms": 1794770310000, "task_id": None, "attempt": None, "actor_id": None,
            "url": f"{REF.url}logs/{NODE}/raylet.out?offset=0&line=1#L1", "before": [], "after": [],
        }
    ]  # fmt: skip


def test_lines_belong_to_the_task_that_wrote_them(client: TestClient) -> None:
    """The recorded task reported bytes 54 to 63 of its worker's output."""
    place = client.get("api/history/task_log_info", params={"task_id": TASK}).json()
    start, end = place["task_log_info"]["stdout_start"], place["task_log_info"]["stdout_end"]
    hits = search(client, file=f"{WORKER}.out", limit=100)["hits"]
    own = [hit["line"] for hit in hits if (hit["task_id"], hit["attempt"]) == (TASK, 0)]
    assert own == [hit["line"] for hit in hits if start <= hit["offset"] < end]
    assert own


def test_lines_belong_to_the_actor_of_their_worker(client: TestClient) -> None:
    (hit,) = search(client, q="first incarnation")["hits"]
    assert (hit["actor_id"], hit["file"]) == (RESTARTED_ACTOR, f"old/{FIRST_INCARNATION}.out")


@pytest.mark.parametrize(
    ("params", "files"),
    [
        ({"actor": RESTARTED_ACTOR}, {f"old/{FIRST_INCARNATION}.out"}),
        ({"job": "03000000"}, {f"{JOB_WORKER}.out", "job-driver-sub-ok.log"}),
        ({"stream": "stderr"}, {f"{WORKER}.err"}),
        ({"file": "raylet*"}, {"raylet.out"}),
        ({"file": "old/*"}, {f"old/{FIRST_INCARNATION}.out"}),
        ({"node": "none"}, set()),
        ({"q": "binary", "file": "*.bin"}, set()),
        ({"q": "after bytes"}, {"binary.bin"}),
        ({"task": "no such task"}, set()),
    ],
)
def test_filters_select_files(client: TestClient, params: dict[str, str], files: set[str]) -> None:
    assert {hit["file"] for hit in search(client, **params)["hits"]} == files


def test_a_task_filters_by_the_range_of_its_output(client: TestClient) -> None:
    hits = search(client, task=TASK)["hits"]
    assert {hit["task_id"] for hit in hits} == {TASK}
    assert all(hit["text"] == OUTPUT[hit["offset"] :].split(b"\n")[0].decode() for hit in hits)


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_pages_follow_each_other(client: TestClient, order: str) -> None:
    everything = search(client, order=order, limit=1000)["hits"]
    assert [hit["at_ms"] for hit in everything] == sorted(
        (hit["at_ms"] for hit in everything), reverse=order == "newest"
    )
    pages, cursor = [], None
    while True:
        body = search(client, order=order, limit=7, **({"cursor": cursor} if cursor else {}))
        pages += body["hits"]
        cursor = body["next"]
        if cursor is None:
            break
        assert not body["complete"]
    assert pages == everything


def test_hits_stream_with_progress_and_an_end(client: TestClient) -> None:
    response = client.get("api/history/search", params={"q": "line"}, headers={"Accept": "application/x-ndjson"})
    assert response.headers["content-type"].startswith("application/x-ndjson")
    lines = [json.loads(line) for line in response.text.splitlines()]
    hits = [line for line in lines if "text" in line]
    assert hits == search(client)["hits"]
    assert lines[-2]["progress"]["scanned_bytes"] == lines[-1]["scanned_bytes"]
    assert (lines[-1]["complete"], lines[-1]["total"]) == (True, len(hits))


def test_as_of_a_point_in_time_there_are_no_later_lines(client: TestClient) -> None:
    response = client.get(
        f"http://testserver{REF.url[:-1]}@1794770309999/api/history/search", params={"q": "line", "file": "raylet.out"}
    )
    assert [hit["line"] for hit in response.json()["hits"]] == [2]


@pytest.mark.parametrize(
    "params",
    [{}, {"q": ""}, {"q": "x" * 65_500}, {"q": "(", "regex": "1"}, {"q": "a", "regex": "yes"}, {"q": "a", "limit": "0"},
     {"q": "a", "limit": "1001"}, {"q": "a", "context": "21"}, {"q": "a", "order": "up"}, {"q": "a", "cursor": "x"},
     {"q": "a", "from": "noon"}, {"q": "a", "stream": "in"}, {"q": "a", "file": "../x"}, {"q": "a", "other": "1"},
     {"q": "a\nb"}],
)  # fmt: skip
def test_wrong_requests_are_reported(client: TestClient, params: dict[str, str]) -> None:
    response = client.get("api/history/search", params=params)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("stream", [False, True])
def test_a_store_that_fails_midway_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    real = LocalStore.get_range

    async def failing(self: LocalStore, key: str, start: int, end: int) -> bytes:
        if "raylet.out" in key:
            raise StoreUnavailable("connection reset")
        return await real(self, key, start, end)

    with serving(tmp_path, FILES) as client:
        monkeypatch.setattr(LocalStore, "get_range", failing)
        headers = {"Accept": "application/x-ndjson"} if stream else {}
        response = client.get("api/history/search", params={"q": "line"}, headers=headers)
    last = json.loads(response.text.splitlines()[-1])
    assert last["error"]["code"] == "store_unavailable"
    assert response.status_code == (200 if stream else 503)


def test_counts_are_of_all_lines_and_not_of_the_page(client: TestClient) -> None:
    body = search(client, limit=1, counts=1)
    everything = search(client)
    counts = body["counts"]
    assert "counts" not in everything
    assert (len(body["hits"]), body["total"], counts["complete"]) == (1, everything["total"], True)
    assert counts["nodes"] == [{"node_id": NODE, "hits": everything["total"]}]
    assert sum(each["hits"] for each in counts["files"]) == everything["total"]
    assert sum(hits for _, hits in counts["histogram"]["buckets"]) == everything["total"]
    streamed = client.get("api/history/search?q=line&counts=1", headers={"Accept": "application/x-ndjson"}).text
    assert json.loads(streamed.splitlines()[-1])["counts"] == counts
