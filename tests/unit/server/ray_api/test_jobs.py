"""The output of jobs: in one piece however large, over a WebSocket that ends, and followed while it is written."""

import asyncio
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from packaging.version import Version
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from rayhistory.errors import StoreUnavailable
from rayhistory.layout import Layout, SessionRef, StartRecord
from rayhistory.server import logfiles, logflow
from rayhistory.server.app import create_app
from rayhistory.server.logfind import Found
from rayhistory.storage import open_store
from rayhistory.storage.local import LocalStore
from recorded_sample import NODE, REF, keep_sample, live, serving, settings_for

NEXT = SessionRef.checked("default", "sample", "session_2026-11-16_00-00-00_000000_1")
TASK = "c2668a65bda616c1ffffffffffffffffffffffff01000000"
WORKER = "worker-d08dbbc3dc8723a409171043cb3c6beeb647c44e3bacd34df892a9a5-01000000-16292"
OUTPUT = "line one\n“quoted” \\ \x00 \x1b[31mröt\x1b[0m 绿\n" * 50
FILES = {
    "job-driver-sub-ok.log": OUTPUT.encode(),
    "job-driver-sub-fail.log": b"half a character \xe7\xbb and \xff\n",
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("jobs"), FILES) as client:
        yield client


def submissions(client: TestClient) -> dict[str, dict[str, Any]]:
    return {job["submission_id"]: job for job in client.get("api/jobs/").json() if job["submission_id"]}


def tailed(client: TestClient, job: str) -> str:
    text = ""
    with client.websocket_connect(f"{REF.url}api/jobs/{job}/logs/tail") as socket:
        while True:
            try:
                text += socket.receive_text()
            except WebSocketDisconnect as end:
                assert end.code == 1000
                return text


@pytest.mark.parametrize("size", [1, 3, 7, 4096])
def test_the_output_is_one_json_text_however_it_is_read(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(logflow, "BLOCK", size)
    assert client.get("api/jobs/sub-ok/logs").json() == {"logs": OUTPUT}
    assert client.get("api/jobs/sub-fail/logs").json() == {
        "logs": FILES["job-driver-sub-fail.log"].decode("utf-8", "replace")
    }
    assert tailed(client, "sub-ok") == OUTPUT


def test_a_job_is_found_by_the_id_of_its_driver_too(client: TestClient) -> None:
    driver = submissions(client)["sub-ok"]["job_id"]
    assert tailed(client, driver) == client.get(f"api/jobs/{driver}/logs").json()["logs"] == OUTPUT


def test_a_job_whose_output_was_not_kept_has_none(client: TestClient) -> None:
    without = next(name for name in submissions(client) if name not in ("sub-ok", "sub-fail"))
    assert client.get(f"api/jobs/{without}/logs").json() == {"logs": ""}
    assert tailed(client, without) == ""


@pytest.mark.parametrize(
    ("job", "status", "text"),
    [
        ("nobody", 404, "Job nobody does not exist"),
        ("01000000", 400, "Can only get logs of submission type jobs"),
    ],
)
def test_only_submitted_jobs_have_output(client: TestClient, job: str, status: int, text: str) -> None:
    answer = client.get(f"api/jobs/{job}/logs")
    assert (answer.status_code, answer.text) == (status, text)
    with (
        pytest.raises(WebSocketDenialResponse) as denied,
        client.websocket_connect(f"{REF.url}api/jobs/{job}/logs/tail"),
    ):
        pass
    assert (denied.value.status_code, denied.value.text) == (status, text)


def test_a_socket_to_no_session_is_refused_with_the_reason(client: TestClient) -> None:
    path = REF.url.replace("sample", "nobodys")
    for url, status in ((f"{path}api/jobs/x/logs/tail", 404), ("/api/jobs/x/logs/tail", 400), ("/s/x", 400)):
        with pytest.raises(WebSocketDenialResponse) as denied, client.websocket_connect(url):
            pass
        assert denied.value.status_code == status


def test_a_socket_finds_the_session_that_the_cookies_name(client: TestClient) -> None:
    """The job client of Ray takes cookies."""
    cookies = f"cluster_name={REF.cluster}; cluster_namespace={REF.namespace}; session_name={REF.session}"
    with client.websocket_connect("/api/jobs/sub-ok/logs/tail", headers={"cookie": cookies}) as socket:
        assert OUTPUT.startswith(socket.receive_text()[:100])


def test_who_asks_for_a_socket_without_one_is_told(client: TestClient) -> None:
    answer = client.get("api/jobs/sub-ok/logs/tail")
    assert (answer.status_code, answer.headers["upgrade"]) == (426, "websocket")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "api/jobs/"),
        ("POST", "api/jobs/sub-ok/stop"),
        ("DELETE", "api/jobs/sub-ok"),
        ("PUT", "api/packages/gcs/_ray_pkg_0123456789abcdef.zip"),
    ],
)
def test_nothing_can_be_changed(client: TestClient, method: str, path: str) -> None:
    answer = client.request(method, path, json={})
    assert answer.status_code == 405
    assert answer.text == f"{method} is not possible here: this is history, and can only be read"
    assert answer.headers["allow"] == "GET, HEAD"


class Growing:
    """A session that runs, with one log that grows."""

    def __init__(self, directory: Path) -> None:
        self.settings = settings_for(directory)
        self.layout = Layout(self.settings.storage_root_dir)
        keep_sample(self.settings, {"raylet.out": b"one\n", "job-driver-sub-run.log": b"one\n"})
        self.begin(REF)

    def put(self, key: str, data: bytes) -> None:
        asyncio.run(open_store(self.settings, writable=True).put(key, data))

    def begin(self, ref: SessionRef) -> None:
        start = StartRecord(ref.namespace, ref.cluster, ref.session, 1)
        self.put(self.layout.metadata_key(ref), b"")
        self.put(self.layout.start_key(ref), msgspec.json.encode(start))
        self.put(self.layout.alive_key(ref), b"")

    def write(self, data: bytes, file: str = "raylet.out") -> None:
        self.put(self.layout.log_key(REF, NODE, file), data)

    def say(self, uri: str, body: Any) -> None:
        """What its dashboard answers from now on."""
        said = {"eventType": "DASHBOARD_SNAPSHOT", "timestamp": "2026-11-15T19:20:00Z",
                "dashboardSnapshot": {"uri": uri, "body": body}}  # fmt: skip
        key = self.layout.events_key(REF, NODE, "snapshots", time.time_ns(), compressed=False)
        self.put(key, msgspec.json.encode(said))

    def end(self) -> None:
        self.put(self.layout.end_key(REF), b'{"ended_ms": 1}')


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Growing:
    for module in (logfiles, logflow):
        monkeypatch.setattr(module, "FRESH", 0.0)
    return Growing(tmp_path)


@pytest.mark.parametrize("name", [REF.session, "latest", "live"])
def test_a_stream_of_a_running_session_goes_on_until_it_ends(session: Growing, name: str) -> None:
    """Also when another has begun in the meantime."""
    query = {"node_id": NODE, "filename": "raylet.out", "interval": "0.2"}

    async def ask() -> bytes:
        text = b""
        app = create_app(session.settings)
        async with app.router.lifespan_context(app):
            messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
            scope = http_scope(
                app, f"/s/default/sample/{name}/api/v0/logs/stream", "&".join(f"{k}={v}" for k, v in query.items())
            )
            asking = asyncio.create_task(app(scope, never, messages.put))
            steps = {b"one\n": b"one\ntwo\n", b"one\ntwo\n": b"one\ntwo\nthree"}
            while True:
                message = await asyncio.wait_for(messages.get(), 60)
                text += message.get("body", b"")
                if text in steps:
                    await asyncio.to_thread(session.write, steps.pop(text))
                elif text == b"one\ntwo\nthree" and message["more_body"]:
                    await asyncio.to_thread(session.begin, NEXT)
                    await asyncio.to_thread(session.end)
                if message["type"] == "http.response.body" and not message["more_body"]:
                    break
            await asking
        return text

    assert asyncio.run(ask()) == b"one\ntwo\nthree"


def test_a_log_that_grows_between_two_looks_is_still_followed(session: Growing) -> None:
    """Whoever finds it and whoever follows it look at different times."""

    async def follow() -> bytes:
        (logs, *_) = logfiles.plain_logs(LocalStore(Path(session.settings.local_storage_dir)), session.layout, REF)
        size = (await logfiles.find_file(logs, NODE, "raylet.out")).size
        await asyncio.to_thread(session.write, b"one\ntwo\n")
        rounds = iter([b"one\ntwo\nthree", b""])

        async def is_over() -> bool:
            if more := next(rounds):
                await asyncio.to_thread(session.write, more)
            return not more

        found = Found(NODE, "raylet.out", 0, size)
        return b"".join([piece async for piece in logflow.followed(logs, found, is_over, 0.0)])

    assert asyncio.run(follow()) == b"one\ntwo\nthree"


def test_jobs_whose_ids_differ_only_in_case_have_each_their_own_output(session: Growing) -> None:
    jobs = [job for job in live("jobs_after_snap") if job["submission_id"] == "sub-ok"]
    names = ("Train", "train", "TRAIN")
    session.say("/api/jobs/", [job | {"submission_id": name, "job_id": None} for job in jobs for name in names])
    for name in names:
        session.write(f"output of {name}\n".encode(), f"job-driver-{name}.log")
    with TestClient(create_app(session.settings), base_url=f"http://testserver{REF.url}") as client:
        for name in names:
            assert client.get(f"api/jobs/{name}/logs").json() == {"logs": f"output of {name}\n"}
            found = client.get("api/v0/logs/file", params={"submission_id": name, "node_id": NODE})
            assert found.text == f"output of {name}\n"
        assert client.get("api/v0/logs/file", params={"submission_id": "tRAIN", "node_id": NODE}).status_code == 500


def test_a_log_that_is_moved_away_is_followed_to_where_it_is(session: Growing) -> None:
    async def follow() -> bytes:
        store = Path(session.settings.local_storage_dir)
        logs = logfiles.AllLogs(*logfiles.plain_logs(LocalStore(store), session.layout, REF))
        rounds = iter([False, False, True])

        async def is_over() -> bool:
            if over := next(rounds):
                (store / session.layout.log_key(REF, NODE, "raylet.out")).unlink()
                await asyncio.to_thread(session.write, b"one\ntwo\n", "old/raylet.out")
            return over

        found = Found(NODE, "raylet.out", 0, 4)
        return b"".join([piece async for piece in logflow.followed(logs, found, is_over, 0.0)])

    assert asyncio.run(follow()) == b"one\ntwo\n"


def test_a_log_that_is_moved_away_while_it_is_read_is_read_on(session: Growing) -> None:
    async def read() -> list[bytes]:
        store = Path(session.settings.local_storage_dir)
        logs = logfiles.AllLogs(*logfiles.plain_logs(LocalStore(store), session.layout, REF))
        first = await logs.read(NODE, "raylet.out", 0, 2)
        (store / session.layout.log_key(REF, NODE, "raylet.out")).unlink()
        await asyncio.to_thread(session.write, b"one\n", "old/raylet.out")
        return [first, await logs.read(NODE, "raylet.out", 2, 4)]

    assert asyncio.run(read()) == [b"on", b"e\n"]


def test_the_output_of_a_task_that_has_ended_is_not_followed(session: Growing) -> None:
    """It ends where the file ends, until another task writes to it."""
    session.write(b"x" * 54 + b"its lines", f"{WORKER}.out")

    async def ask() -> bytes:
        text = b""

        async def send(message: dict[str, Any]) -> None:
            nonlocal text
            text += message.get("body", b"")

        app = create_app(session.settings)
        async with app.router.lifespan_context(app):
            scope = http_scope(app, f"{REF.url}api/v0/logs/stream", f"task_id={TASK}")
            await asyncio.wait_for(app(scope, never, send), 60)
        return text

    assert asyncio.run(ask()) == b"its lines"


def test_the_output_of_a_job_is_not_over_because_another_session_begins(session: Growing) -> None:
    job = live("jobs_after_snap")[0] | {"submission_id": "sub-run", "status": "RUNNING", "end_time": None}
    session.say("/api/jobs/", [job])
    with TestClient(create_app(session.settings)) as client:
        latest = "/s/default/sample/latest"
        with client.websocket_connect(f"{latest}/api/jobs/sub-run/logs/tail") as socket:
            assert socket.receive_text() == "one\n"
            session.begin(NEXT)
            until = time.monotonic() + 60
            while client.get(f"{latest}/api/version").json()["session_name"] != NEXT.session:
                assert time.monotonic() < until
                time.sleep(0.2)
            time.sleep(1.5)  # which is longer than one round of the one who follows
            session.write(b"one\ntwo\n", "job-driver-sub-run.log")
            assert socket.receive_text() == "two\n"
            session.end()
            assert socket.receive() == {"type": "websocket.close", "code": 1000, "reason": ""}


def test_kept_answers_of_another_shape_are_as_good_as_none(session: Growing) -> None:
    session.say("/api/version", ["2.60.0"])
    session.say("/api/grafana_health", {"data": ["http://grafana"]})
    settings = dataclasses.replace(session.settings, grafana_url="https://grafana.example.com")
    with TestClient(create_app(settings)) as client:
        assert client.get(f"{REF.url}api/version").json()["session_name"] == REF.session
        assert client.get(f"{REF.url}api/grafana_health").json()["data"]["grafanaHost"] == "grafana"


async def never() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


def http_scope(app: Any, path: str, query: str) -> dict[str, Any]:
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "app": app,
        "headers": [(b"host", b"testserver")], "client": None, "server": ("testserver", 80),
    }  # fmt: skip


def test_output_that_cannot_be_read_to_its_end_has_no_proper_end(tmp_path: Path) -> None:
    """Ray's client takes any close for the end of the output; what breaks off is an error to it."""

    class Failing(LocalStore):
        async def get_range(self, key: str, start: int, end: int) -> bytes:
            if key.endswith("job-driver-sub-ok.log") and start > 0:
                raise StoreUnavailable("away")
            return await super().get_range(key, start, end)

    settings = settings_for(tmp_path)
    keep_sample(settings, {"job-driver-sub-ok.log": b"x" * (logflow.BLOCK + 1)})
    with TestClient(create_app(settings, Failing(Path(settings.local_storage_dir)))) as client:
        scope = http_scope(client.app, f"{REF.url}api/jobs/sub-ok/logs/tail", "")
        scope |= {"type": "websocket", "scheme": "ws", "subprotocols": [], "extensions": {}}
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "websocket.connect"} if not sent else await never()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        async def ask() -> None:
            await client.app(scope, receive, send)

        assert client.portal is not None
        client.portal.call(ask)
    kinds = [message["type"] for message in sent]
    assert kinds[0] == "websocket.accept"
    assert sum(len(message["text"]) for message in sent[1:]) == logflow.BLOCK
    assert "websocket.close" not in kinds


def test_slashes_that_meet_are_one(client: TestClient) -> None:
    """`http://host/` and `/s/…`, or a session's address and `/api/…`, put together by a script."""
    expected = client.get("api/version").json()
    for path in (f"{REF.url}/api/version", f"/{REF.url}api/version?a=%2F", f"//{REF.url}//api/version"):
        assert client.get(f"http://testserver{path}").json() == expected


def test_a_session_of_an_unknown_version_has_one_that_clients_can_compare(tmp_path: Path) -> None:
    """KubeRay's collectors do not keep it; Ray's job client gives up on what is no version."""
    settings = settings_for(tmp_path)
    path = tmp_path / "store" / Layout().events_key(REF, NODE, "node_events", 1, compressed=False)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    marker = tmp_path / "store" / Layout().metadata_key(REF)
    marker.parent.mkdir(parents=True)
    marker.touch()
    with TestClient(create_app(settings)) as server:
        version = server.get(f"{REF.url}api/version").json()["ray_version"]
    assert Version("2.8") < Version(version) < Version("2.50")
