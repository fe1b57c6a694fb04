"""Output of jobs: as one JSON string, over a WebSocket, and followed while it grows."""

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
from starlette.types import Message
from starlette.websockets import WebSocketDisconnect

from rayhistory.errors import StoreUnavailable
from rayhistory.logs import source
from rayhistory.server.app import create_app
from rayhistory.server.logs import follow as follow_module
from rayhistory.server.logs import stream
from rayhistory.server.logs.follow import follow
from rayhistory.server.logs.locate import LogRange
from rayhistory.sessions import Layout, SessionRef, StartRecord
from rayhistory.storage import open_store
from rayhistory.storage.local import LocalStore
from support.recorded_sample import NODE, REF, live, serving, settings_for, store_sample

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


def read_websocket(client: TestClient, job: str) -> str:
    text = ""
    with client.websocket_connect(f"{REF.url}api/jobs/{job}/logs/tail") as socket:
        while True:
            try:
                text += socket.receive_text()
            except WebSocketDisconnect as end:
                assert end.code == 1000
                return text


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3, 7, 4096])
def test_job_output_is_one_json_string_for_any_block_size(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(stream, "BLOCK_BYTES", size)
    assert client.get("api/jobs/sub-ok/logs").json() == {"logs": OUTPUT}
    assert client.get("api/jobs/sub-fail/logs").json() == {
        "logs": FILES["job-driver-sub-fail.log"].decode("utf-8", "replace")
    }
    assert read_websocket(client, "sub-ok") == OUTPUT


def test_job_is_found_by_its_job_id(client: TestClient) -> None:
    driver = submissions(client)["sub-ok"]["job_id"]
    assert read_websocket(client, driver) == client.get(f"api/jobs/{driver}/logs").json()["logs"] == OUTPUT


def test_job_without_stored_output_has_empty_logs(client: TestClient) -> None:
    without = next(name for name in submissions(client) if name not in ("sub-ok", "sub-fail"))
    assert client.get(f"api/jobs/{without}/logs").json() == {"logs": ""}
    assert read_websocket(client, without) == ""


@pytest.mark.parametrize(
    ("job", "status", "text"),
    [
        ("unknown", 404, "Job unknown does not exist"),
        ("01000000", 400, "Can only get logs of submission type jobs"),
    ],
)
def test_only_submission_jobs_have_output(client: TestClient, job: str, status: int, text: str) -> None:
    response = client.get(f"api/jobs/{job}/logs")
    assert (response.status_code, response.text) == (status, text)
    with (
        pytest.raises(WebSocketDenialResponse) as denied,
        client.websocket_connect(f"{REF.url}api/jobs/{job}/logs/tail"),
    ):
        pass
    assert (denied.value.status_code, denied.value.text) == (status, text)


def test_websocket_to_unknown_session_is_rejected_with_reason(client: TestClient) -> None:
    path = REF.url.replace("sample", "unknown")
    for url, status in ((f"{path}api/jobs/x/logs/tail", 404), ("/api/jobs/x/logs/tail", 400), ("/s/x", 400)):
        with pytest.raises(WebSocketDenialResponse) as denied, client.websocket_connect(url):
            pass
        assert denied.value.status_code == status


def test_websocket_uses_the_session_of_the_cookies(client: TestClient) -> None:
    """Ray's job client sends cookies."""
    cookies = f"cluster_name={REF.cluster}; cluster_namespace={REF.namespace}; session_name={REF.session}"
    with client.websocket_connect("/api/jobs/sub-ok/logs/tail", headers={"cookie": cookies}) as socket:
        assert OUTPUT.startswith(socket.receive_text()[:100])


def test_plain_get_of_a_websocket_path_gets_426(client: TestClient) -> None:
    response = client.get("api/jobs/sub-ok/logs/tail")
    assert (response.status_code, response.headers["upgrade"]) == (426, "websocket")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "api/jobs/"),
        ("POST", "api/jobs/sub-ok/stop"),
        ("DELETE", "api/jobs/sub-ok"),
        ("PUT", "api/packages/gcs/_ray_pkg_0123456789abcdef.zip"),
    ],
)
def test_jobs_cannot_be_changed(client: TestClient, method: str, path: str) -> None:
    response = client.request(method, path, json={})
    assert response.status_code == 405
    assert response.text == f"{method} is not allowed: the history server is read-only"
    assert response.headers["allow"] == "GET, HEAD"


class RunningSession:
    """A running session with a log that grows."""

    def __init__(self, directory: Path) -> None:
        self.settings = settings_for(directory)
        self.layout = Layout(self.settings.storage_root_dir)
        store_sample(self.settings, {"raylet.out": b"one\n", "job-driver-sub-run.log": b"one\n"})
        self.start(REF)

    def put(self, key: str, data: bytes) -> None:
        asyncio.run(open_store(self.settings, writable=True).put(key, data))

    def start(self, ref: SessionRef) -> None:
        start = StartRecord(ref.namespace, ref.cluster, ref.session, 1)
        self.put(self.layout.metadata_key(ref), b"")
        self.put(self.layout.start_key(ref), msgspec.json.encode(start))
        self.put(self.layout.alive_key(ref), b"")

    def write(self, data: bytes, file: str = "raylet.out") -> None:
        self.put(self.layout.log_key(REF, NODE, file), data)

    def store_response(self, uri: str, body: Any) -> None:
        """Store a newer dashboard response."""
        event = {"eventType": "DASHBOARD_SNAPSHOT", "timestamp": "2026-11-15T19:20:00Z",
                 "dashboardSnapshot": {"uri": uri, "body": body}}  # fmt: skip
        key = self.layout.events_key(REF, NODE, "snapshots", time.time_ns(), compressed=False)
        self.put(key, msgspec.json.encode(event))

    def end(self) -> None:
        self.put(self.layout.end_key(REF), b'{"ended_ms": 1}')


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunningSession:
    for module in (source, follow_module):
        monkeypatch.setattr(module, "LISTING_TTL_S", 0.0)
    return RunningSession(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [REF.session, "latest", "live"])
def test_stream_of_a_running_session_continues_until_it_ends(session: RunningSession, name: str) -> None:
    """Another session of the cluster starts in the meantime."""
    query = {"node_id": NODE, "filename": "raylet.out", "interval": "0.2"}

    async def fetch() -> bytes:
        text: bytes = b""
        app = create_app(session.settings)
        async with app.router.lifespan_context(app):
            messages: asyncio.Queue[Message] = asyncio.Queue()
            scope = http_scope(
                app, f"/s/default/sample/{name}/api/v0/logs/stream", "&".join(f"{k}={v}" for k, v in query.items())
            )
            task = asyncio.create_task(app(scope, never, messages.put))
            steps = {b"one\n": b"one\ntwo\n", b"one\ntwo\n": b"one\ntwo\nthree"}
            while True:
                message = await asyncio.wait_for(messages.get(), 60)
                text += bytes(message.get("body", b""))
                if text in steps:
                    await asyncio.to_thread(session.write, steps.pop(text))
                elif text == b"one\ntwo\nthree" and message["more_body"]:
                    await asyncio.to_thread(session.start, NEXT)
                    await asyncio.to_thread(session.end)
                if message["type"] == "http.response.body" and not message["more_body"]:
                    break
            await task
        return text

    assert asyncio.run(fetch()) == b"one\ntwo\nthree"


@pytest.mark.slow
def test_response_to_an_empty_log_begins_before_its_first_byte(session: RunningSession) -> None:
    session.write(b"", "worker.out")

    async def fetch() -> list[Message]:
        app = create_app(session.settings)
        async with app.router.lifespan_context(app):
            messages: asyncio.Queue[Message] = asyncio.Queue()
            query = f"node_id={NODE}&filename=worker.out&interval=0.2"
            scope = http_scope(app, f"{REF.url}api/v0/logs/stream", query)
            task = asyncio.create_task(app(scope, never, messages.put))
            received = [await asyncio.wait_for(messages.get(), 60)]
            await asyncio.to_thread(session.write, b"one\n", "worker.out")
            await asyncio.to_thread(session.end)
            await task
            while not messages.empty():
                received.append(messages.get_nowait())
            return received

    first, *chunks = asyncio.run(fetch())
    assert (first["type"], first["status"]) == ("http.response.start", 200)
    assert b"".join(chunk["body"] for chunk in chunks) == b"one\n"


def test_log_that_grows_between_polls_is_followed(session: RunningSession) -> None:
    """The size is read when the log is located, and again when it is followed."""

    async def read_all() -> bytes:
        (logs, *_) = source.object_logs(LocalStore(Path(session.settings.local_storage_dir)), session.layout, REF)
        size = (await source.find_file(logs, NODE, "raylet.out")).size
        await asyncio.to_thread(session.write, b"one\ntwo\n")
        rounds = iter([b"one\ntwo\nthree", b""])

        async def has_ended() -> bool:
            if more := next(rounds):
                await asyncio.to_thread(session.write, more)
            return not more

        log_range = LogRange(NODE, "raylet.out", 0, size)
        return b"".join([block async for block in follow(logs, log_range, has_ended, 0.0)])

    assert asyncio.run(read_all()) == b"one\ntwo\nthree"


@pytest.mark.slow
def test_job_ids_that_differ_only_in_case_have_their_own_output(session: RunningSession) -> None:
    jobs = [job for job in live("jobs_after_snap") if job["submission_id"] == "sub-ok"]
    names = ("Train", "train", "TRAIN")
    session.store_response(
        "/api/jobs/", [job | {"submission_id": name, "job_id": None} for job in jobs for name in names]
    )
    for name in names:
        session.write(f"output of {name}\n".encode(), f"job-driver-{name}.log")
    with TestClient(create_app(session.settings), base_url=f"http://testserver{REF.url}") as client:
        for name in names:
            assert client.get(f"api/jobs/{name}/logs").json() == {"logs": f"output of {name}\n"}
            log = client.get("api/v0/logs/file", params={"submission_id": name, "node_id": NODE})
            assert log.text == f"output of {name}\n"
        assert client.get("api/v0/logs/file", params={"submission_id": "tRAIN", "node_id": NODE}).status_code == 500


def test_moved_log_is_followed(session: RunningSession) -> None:
    async def read_all() -> bytes:
        store = Path(session.settings.local_storage_dir)
        logs = source.CombinedLogs(*source.object_logs(LocalStore(store), session.layout, REF))
        rounds = iter([False, False, True])

        async def has_ended() -> bool:
            if ended := next(rounds):
                (store / session.layout.log_key(REF, NODE, "raylet.out")).unlink()
                await asyncio.to_thread(session.write, b"one\ntwo\n", "old/raylet.out")
            return ended

        log_range = LogRange(NODE, "raylet.out", 0, 4)
        return b"".join([block async for block in follow(logs, log_range, has_ended, 0.0)])

    assert asyncio.run(read_all()) == b"one\ntwo\n"


def test_log_moved_during_a_read_is_read_to_its_end(session: RunningSession) -> None:
    async def read() -> list[bytes]:
        store = Path(session.settings.local_storage_dir)
        logs = source.CombinedLogs(*source.object_logs(LocalStore(store), session.layout, REF))
        first = await logs.read(NODE, "raylet.out", 0, 2)
        (store / session.layout.log_key(REF, NODE, "raylet.out")).unlink()
        await asyncio.to_thread(session.write, b"one\n", "old/raylet.out")
        return [first, await logs.read(NODE, "raylet.out", 2, 4)]

    assert asyncio.run(read()) == [b"on", b"e\n"]


@pytest.mark.slow
def test_output_of_an_ended_task_is_not_followed(session: RunningSession) -> None:
    """Its range ends where the file ends until another task writes to it."""
    session.write(b"x" * 54 + b"its lines", f"{WORKER}.out")

    async def fetch() -> bytes:
        text = b""

        async def send(message: Message) -> None:
            nonlocal text
            text += message.get("body", b"")

        app = create_app(session.settings)
        async with app.router.lifespan_context(app):
            scope = http_scope(app, f"{REF.url}api/v0/logs/stream", f"task_id={TASK}")
            await asyncio.wait_for(app(scope, never, send), 60)
        return text

    assert asyncio.run(fetch()) == b"its lines"


@pytest.mark.slow
def test_job_output_continues_when_another_session_starts(session: RunningSession) -> None:
    job = live("jobs_after_snap")[0] | {"submission_id": "sub-run", "status": "RUNNING", "end_time": None}
    session.store_response("/api/jobs/", [job])
    with TestClient(create_app(session.settings)) as client:
        latest = "/s/default/sample/latest"
        with client.websocket_connect(f"{latest}/api/jobs/sub-run/logs/tail") as socket:
            assert socket.receive_text() == "one\n"
            session.start(NEXT)
            deadline = time.monotonic() + 60
            while client.get(f"{latest}/api/version").json()["session_name"] != NEXT.session:
                assert time.monotonic() < deadline
                time.sleep(0.2)
            time.sleep(1.5)  # longer than one poll of the follower
            session.write(b"one\ntwo\n", "job-driver-sub-run.log")
            assert socket.receive_text() == "two\n"
            session.end()
            assert socket.receive() == {"type": "websocket.close", "code": 1000, "reason": ""}


@pytest.mark.slow
def test_malformed_dashboard_responses_are_ignored(session: RunningSession) -> None:
    session.store_response("/api/version", ["2.60.0"])
    session.store_response("/api/grafana_health", {"data": ["http://grafana"]})
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


@pytest.mark.slow
def test_job_output_is_aborted_when_the_store_fails(tmp_path: Path) -> None:
    """Ray's client takes a regular close for the end of the output, and a dropped connection for an error."""

    class FailingStore(LocalStore):
        async def get_range(self, key: str, start: int, end: int) -> bytes:
            if key.endswith("job-driver-sub-ok.log") and start > 0:
                raise StoreUnavailable("unavailable")
            return await super().get_range(key, start, end)

    settings = settings_for(tmp_path)
    store_sample(settings, {"job-driver-sub-ok.log": b"x" * (stream.BLOCK_BYTES + 1)})
    with TestClient(create_app(settings, FailingStore(Path(settings.local_storage_dir)))) as client:
        scope = http_scope(client.app, f"{REF.url}api/jobs/sub-ok/logs/tail", "")
        scope |= {"type": "websocket", "scheme": "ws", "subprotocols": [], "extensions": {}}
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "websocket.connect"} if not sent else await never()

        async def send(message: Message) -> None:
            sent.append(message)

        async def fetch() -> None:
            await client.app(scope, receive, send)

        assert client.portal is not None
        client.portal.call(fetch)
    kinds = [message["type"] for message in sent]
    assert kinds[0] == "websocket.accept"
    assert sum(len(message["text"]) for message in sent[1:]) == stream.BLOCK_BYTES
    assert "websocket.close" not in kinds


def test_double_slashes_are_collapsed(client: TestClient) -> None:
    """Scripts join a base URL and a path that both have a slash."""
    expected = client.get("api/version").json()
    for path in (f"{REF.url}/api/version", f"/{REF.url}api/version?a=%2F", f"//{REF.url}//api/version"):
        assert client.get(f"http://testserver{path}").json() == expected


@pytest.mark.slow
def test_unknown_ray_version_is_replaced_by_a_comparable_one(tmp_path: Path) -> None:
    """KubeRay's collectors do not store the version, and Ray's job client fails without a valid one."""
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
