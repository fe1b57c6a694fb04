"""The collector as a process: how it starts, ends, and what is left when it is killed."""

import contextlib
import gzip
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

SESSION = "session_2026-11-15_19-18-08_055078_15551"
NEXT_SESSION = "session_2026-11-15_20-00-00_000000_20000"
NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"
KUBERAY_EVENT_FILE = re.compile(r"-\d{4}-\d{2}-\d{2}-\d{2}(-\d+)?(\.jsonl)?(\.gz)?$")


class FakeRay:
    """What a running Ray shows on disk: a session directory with a port file, logs, and a raylet that listens."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._raylet: socket.socket | None = None

    def begin(self, session: str = SESSION, node: str = NODE) -> Path:
        directory = self.root / session
        (directory / "sockets").mkdir(parents=True)
        (directory / "logs").mkdir()
        (directory / "logs" / "raylet.out").write_text("hello from the raylet\n")
        (directory / f"metrics_export_port_{node}").write_text("1")
        self._raylet = socket.socket(socket.AF_UNIX)
        self._raylet.bind(str(directory / "sockets" / "raylet"))
        self._raylet.listen()
        latest = self.root / "session_latest"
        latest.unlink(missing_ok=True)
        latest.symlink_to(directory)
        return directory

    def end(self) -> None:
        if self._raylet:
            self._raylet.close()
            self._raylet = None


class Running:
    """A collector in a process of its own, with its own directories."""

    def __init__(self, home: Path, *flags: str, **environment: str) -> None:
        self.home = home
        self.flags = flags
        self.environment = environment
        self.store = home / "store"
        self.spool = home / "spool" / "test_default"
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Running":
        log = self.home / f"log-{time.time_ns()}"
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "rayhistory.collector.main", "--events-host=127.0.0.1"),
                    *(f"--events-port={self.port}", f"--event-data-dir={self.home / 'spool'}"),
                    *("--ray-cluster-name=test", *self.flags),
                ],
                env={
                    **os.environ,
                    "STORAGE_BACKEND": "local",
                    "LOCAL_STORAGE_DIR": str(self.store),
                    "RAY_TMP_ROOT": str(self.home),
                    "RAY_DASHBOARD_ADDRESS": "http://127.0.0.1:9",
                    **self.environment,
                },
                stderr=output,
            )
        process = self.process

        def listening() -> list[dict[str, Any]]:
            assert process.poll() is None, log.read_text()
            return [line for line in log_lines(log) if line["event"] == "listening"]

        self.port = eventually(listening)[0]["port"]
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, body: Any) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx.post(f"{self.url}/v1/events", content=content, trust_env=False)

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()

    def end(self, seconds: float = 20.0) -> int:
        assert self.process
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def log(self) -> list[dict[str, Any]]:
        return [line for path in sorted(self.home.glob("log-*")) for line in log_lines(path)]

    def stored_keys(self) -> list[str]:
        return sorted(str(path.relative_to(self.store)) for path in self.store.rglob("*") if path.is_file())

    def stored_events(self) -> list[dict[str, Any]]:
        paths = [path for path in self.store.rglob("*.jsonl.gz") if "_events" in str(path)]
        return [json.loads(line) for path in paths for line in gzip.decompress(path.read_bytes()).splitlines()]

    def spooled(self) -> bytes:
        return b"".join(gzip.decompress(path.read_bytes()) for path in self.spool.rglob("*.wal"))


def event(number: int, session: str = SESSION, job: str = "AQAAAA==") -> dict[str, Any]:
    return {
        "eventId": str(number),
        "eventType": "TASK_DEFINITION_EVENT",
        "sourceType": "CORE_WORKER",
        "timestamp": "2026-11-15T19:18:22.063903729Z",
        "sessionName": session,
        "taskDefinitionEvent": {"jobId": job, "taskId": "x"},
    }


def eventually(condition: Callable[[], Any], seconds: float = 15.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return found


def log_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: Ray's sockets are below it."""
    directory = Path(tempfile.mkdtemp(prefix="rh"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def ray(home: Path) -> Iterator[FakeRay]:
    fake = FakeRay(home)
    yield fake
    fake.end()


@contextlib.contextmanager
def running(home: Path, *flags: str, **environment: str) -> Iterator[Running]:
    collector = Running(home, *flags, **environment).start()
    try:
        yield collector
    finally:
        if collector.process and collector.process.poll() is None:
            collector.kill()


def test_an_acknowledged_batch_is_in_the_spool_when_the_answer_comes(home: Path) -> None:
    """200 means that the bytes are in the file already, not that they will be."""
    with running(home) as collector:
        for number in range(20):
            assert collector.post([event(number)]).status_code == 200
            assert f'"eventId": "{number}"'.encode() in collector.spooled()


def test_it_starts_before_ray_and_waits_for_it(home: Path, ray: FakeRay) -> None:
    """A session is in the store seconds after Ray has come up, however long that took."""
    with running(home, "--role=Head") as collector:
        assert httpx.get(f"{collector.url}/readyz", trust_env=False).status_code == 200
        time.sleep(1.5)
        assert collector.stored_keys() == []
        ray.begin()
        keys = eventually(lambda: [key for key in collector.stored_keys() if key.endswith("/alive")])
        assert keys == [f"ray-history/sessions/default/test/{SESSION}/alive"]
        eventually(lambda: f"cluster-metadata/raycluster/default_test/{SESSION}" in collector.stored_keys())
        eventually(lambda: any(f"/{NODE}/" in key and key.endswith(".pack") for key in collector.stored_keys()))
        ray.end()
        assert collector.end() == 0


def test_a_session_that_is_over_is_not_taken_for_a_new_one(home: Path, ray: FakeRay) -> None:
    """session_latest may still lead to yesterday's session while Ray is about to start."""
    ray.begin()
    ray.end()
    with running(home, "--role=Head") as collector:
        time.sleep(2.5)
        assert collector.stored_keys() == []
        ray.begin(NEXT_SESSION)
        eventually(lambda: any(NEXT_SESSION in key for key in collector.stored_keys()))
        assert not any(SESSION in key for key in collector.stored_keys())


def test_a_clean_end_brings_everything_to_the_store(home: Path, ray: FakeRay) -> None:
    """After SIGTERM: events, last logs, the node's seal and end.json, under KubeRay's names; exit code 0."""
    directory = ray.begin()
    with running(home, "--role=Head") as collector:
        lifecycle = {"eventType": "ACTOR_LIFECYCLE_EVENT", "sessionName": SESSION, "actorLifecycleEvent": {}}
        assert collector.post([event(1), lifecycle]).status_code == 200
        eventually(lambda: any(key.endswith("/start.json") for key in collector.stored_keys()))
        (directory / "logs" / "last.log").write_text("the last line\n")
        ray.end()
        assert collector.end() == 0
    history = f"cluster-history/raycluster/default/test/{SESSION}/{NODE}"
    keys = collector.stored_keys()
    events = [key for key in keys if "_events/" in key]
    assert {str(Path(key).parent) for key in events} == {f"{history}/node_events", f"{history}/job_events/01000000"}
    assert all(KUBERAY_EVENT_FILE.search(key) and Path(key).name.startswith(f"{NODE}-") for key in events)
    assert (collector.store / history / "logs" / "last.log").read_text() == "the last line\n"
    record = collector.store / f"ray-history/sessions/default/test/{SESSION}"
    assert json.loads((record / "end.json").read_text())["ended_ms"] > 0
    seal = json.loads((collector.store / f"ray-history/seals/default/test/{SESSION}/{NODE}.json").read_text())
    assert (seal["received"], seal["stored"], seal.get("left_behind", [])) == (2, 2, [])
    assert not list(collector.spool.rglob("*.wal"))


def test_events_are_taken_until_the_raylet_is_gone(home: Path, ray: FakeRay) -> None:
    """SIGTERM reaches Ray and the collector together: what Ray sends while it ends is kept."""
    ray.begin()
    with running(home, "--role=Head") as collector:
        eventually(lambda: any(key.endswith("/start.json") for key in collector.stored_keys()))
        assert collector.process
        collector.process.send_signal(signal.SIGTERM)
        time.sleep(1.5)
        assert collector.post([event(7)]).status_code == 200
        ray.end()
        assert collector.process.wait(20) == 0
    assert [each["eventId"] for each in collector.stored_events()] == ["7"]


def test_a_second_signal_hurries(home: Path, ray: FakeRay) -> None:
    """A person who presses Ctrl-C twice does not wait for the raylet."""
    ray.begin()
    with running(home, "--role=Head") as collector:
        eventually(lambda: any(key.endswith("/start.json") for key in collector.stored_keys()))
        assert collector.process
        for _ in range(2):
            collector.process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        assert collector.process.wait(8) == 0
    assert any(key.endswith("/end.json") for key in collector.stored_keys())


def test_a_new_session_in_the_same_place_closes_the_old_one(home: Path, ray: FakeRay) -> None:
    """Ray restarts in the same pod: the old session is sealed with its own node, the new one begins."""
    ray.begin()
    with running(home, "--role=Head") as collector:
        collector.post([event(1)])
        eventually(lambda: any(key.endswith("/start.json") for key in collector.stored_keys()))
        ray.end()
        new_node = "ab" * 28
        ray.begin(NEXT_SESSION, new_node)
        collector.post([event(2, NEXT_SESSION)])
        ended = f"ray-history/sessions/default/test/{SESSION}/end.json"
        eventually(lambda: ended in collector.stored_keys())
        ray.end()
        assert collector.end() == 0
    nodes = {(Path(key).parts[4], Path(key).parts[5]) for key in collector.stored_keys() if "job_events" in key}
    assert nodes == {(SESSION, NODE), (NEXT_SESSION, new_node)}


def test_a_node_id_that_changes_begins_new_objects(home: Path, ray: FakeRay) -> None:
    """A raylet that comes back in the same session has a new id: its events are filed under that."""
    directory = ray.begin()
    with running(home) as collector:
        collector.post([event(1)])
        eventually(lambda: [path for path in collector.spool.rglob("*.wal") if NODE in path.name])
        new_node = "cd" * 28
        (directory / f"metrics_export_port_{new_node}").write_text("1")
        eventually(lambda: [line for line in collector.log() if line.get("node") == new_node])
        collector.post([event(2)])
        ray.end()
        assert collector.end() == 0
    found = {Path(key).parts[5]: key for key in collector.stored_keys() if "job_events" in key}
    assert set(found) == {NODE, new_node}


def test_kill_9_loses_nothing_that_was_acknowledged(home: Path, ray: FakeRay) -> None:
    """Killed hard again and again under load: everything acknowledged is stored, once per key."""
    ray.begin()
    acked: list[str] = []
    collector = Running(home, "--role=Head", "--event-rotation-interval=1s").start()
    try:
        for round_ in range(4):
            with httpx.Client(trust_env=False) as client:
                deadline = time.monotonic() + 1.5
                while time.monotonic() < deadline:
                    batch = [event(len(acked) + n) for n in range(5)]
                    body = json.dumps(batch).encode()
                    assert client.post(f"{collector.url}/v1/events", content=body).status_code == 200
                    acked += [each["eventId"] for each in batch]
            collector.kill()
            if round_ == 1:  # the power fails in the middle of a write
                for path in collector.spool.rglob("*.wal"):
                    with path.open("ab") as file:
                        file.write(b"\x1f\x8b\x08\x04\0\0\0\0\0\xff torn")
            collector.start()
        ray.end()
        assert collector.end() == 0
    finally:
        collector.kill()
    counts = Counter(each["eventId"] for each in collector.stored_events())
    assert set(counts) == set(acked)
    assert set(counts.values()) == {1}


def test_a_collector_that_comes_back_reopens_the_session(home: Path, ray: FakeRay) -> None:
    """end.json of a collector that was restarted alone must not make a running session look ended."""
    ray.begin()
    with running(home, "--role=Head", "--grace-period=5s") as collector:
        eventually(lambda: any(key.endswith("/start.json") for key in collector.stored_keys()))
        start = json.loads(next(collector.store.rglob("start.json")).read_text())
        assert collector.end() == 0
        assert list(collector.store.rglob("end.json"))
        collector.start()
        eventually(lambda: not list(collector.store.rglob("end.json")))
        assert json.loads(next(collector.store.rglob("start.json")).read_text())["started_ms"] == start["started_ms"]


def test_what_was_left_behind_is_uploaded_and_sealed_by_the_next_process(home: Path, ray: FakeRay) -> None:
    """Killed, and Ray is gone when it comes back: the session is over, and its seal is right all the same."""
    ray.begin()
    with running(home) as collector:
        assert collector.post([event(1), event(2)]).status_code == 200
        eventually(lambda: [path for path in collector.spool.rglob("*.wal") if NODE in path.name])
        collector.kill()
        ray.end()
        collector.start()
        seal = eventually(lambda: list(collector.store.rglob(f"seals/**/{NODE}.json")))[0]
        counts = json.loads(seal.read_text())
        assert (counts["received"], counts["stored"], counts.get("left_behind", [])) == (2, 2, [])
        assert len(collector.stored_events()) == 2


def test_a_new_session_is_kept_while_the_seal_of_an_old_one_waits_for_the_store(home: Path, ray: FakeRay) -> None:
    """The store may refuse seals for hours: nobody looks away from Ray because of that, and they come in the end."""
    ray.begin()
    with running(home, "--role=Head") as collector:
        assert collector.post([event(1)]).status_code == 200
        eventually(lambda: [path for path in collector.spool.rglob("*.wal") if NODE in path.name])
        collector.kill()
        ray.end()
        seals = collector.store / "ray-history" / "seals"
        seals.parent.mkdir(parents=True, exist_ok=True)
        seals.write_text("in the way")
        collector.start()
        eventually(lambda: [line for line in collector.log() if "did not take a record" in line["event"]])
        ray.begin(NEXT_SESSION)
        eventually(lambda: any(f"{NEXT_SESSION}/start.json" in key for key in collector.stored_keys()))
        assert collector.process
        collector.process.send_signal(signal.SIGTERM)
        ray.end()
        seals.unlink()
        assert collector.process.wait(20) == 0
        sealed = {Path(key).parts[4] for key in collector.stored_keys() if "/seals/" in key}
        assert sealed == {SESSION, NEXT_SESSION}


def test_counts_in_the_seal_are_of_all_processes(home: Path, ray: FakeRay) -> None:
    """A collector that was killed and came back does not begin at zero."""
    ray.begin()
    with running(home, "--event-rotation-interval=500ms") as collector:
        for number in range(3):
            assert collector.post([event(number)]).status_code == 200
            eventually(lambda: not collector.spooled())
            collector.kill()
            collector.start()
        ray.end()
        assert collector.post([event(9), "bad"]).status_code == 200
        assert collector.end() == 0
    seal = json.loads(next(collector.store.rglob(f"seals/**/{NODE}.json")).read_text())
    assert (seal["received"], seal["stored"], seal["set_aside"]) == (4, 4, 1)


def test_a_store_that_fails_delays_uploads_and_loses_nothing(home: Path, ray: FakeRay) -> None:
    """The store's directory cannot be written for a while: events wait in the spool."""
    ray.begin()
    (home / "store").mkdir()
    (home / "store" / "cluster-history").write_text("in the way")
    with running(home, "--event-rotation-interval=1s") as collector:
        collector.post([event(1)])
        eventually(lambda: [line for line in collector.log() if "tried again" in line["event"]])
        assert collector.spooled()
        (collector.store / "cluster-history").unlink()
        eventually(collector.stored_events)
        eventually(lambda: not collector.spooled())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--unknown"], "unknown flag"),
        (["--role=Boss"], "Head or Worker"),
        (["--storage-backend=tape"], "unknown storage backend"),
        (["--events-host=127.0.0.1", "--events-port={taken}"], "--events-port"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(home: Path, flags: list[str], message: str) -> None:
    """A user's mistake is told in one line that says what to do."""
    environment = {name: value for name, value in os.environ.items() if name not in {"STORAGE_BACKEND", "RAY_ROLE"}}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flags = [flag.format(taken=taken.getsockname()[1]) for flag in flags]
        result = subprocess.run(
            [sys.executable, "-m", "rayhistory.collector.main", *flags],
            env={**environment, "LOCAL_STORAGE_DIR": str(home / "store"), "RAY_TMP_ROOT": str(home)},
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_two_collectors_do_not_share_a_spool(home: Path) -> None:
    """The second one says so, instead of uploading and deleting the first one's open files."""
    with running(home) as first:
        second = Running(home)
        with pytest.raises(AssertionError):
            second.start()
        assert second.process
        assert second.process.wait(5) == 2
        assert first.post([event(1)]).status_code == 200


def test_two_collectors_on_one_host_keep_two_nodes_apart(home: Path) -> None:
    """Each has a temporary directory of Ray and a spool of its own, and both are of one cluster and session."""
    rays = [FakeRay(home / name) for name in ("a", "b")]
    nodes = ["ab" * 28, "cd" * 28]
    for ray, node in zip(rays, nodes, strict=True):
        (ray.begin(node=node) / "logs" / "worker.out").write_text(f"of {node}\n")
    store = {"LOCAL_STORAGE_DIR": str(home / "store")}
    with running(home / "a", "--role=Head", **store) as first, running(home / "b", **store) as second:
        for collector, number in ((first, 1), (second, 2)):
            assert collector.post([event(number)]).status_code == 200
        for collector, ray in ((second, rays[1]), (first, rays[0])):
            eventually(lambda collector=collector: "a session is kept" in str(collector.log()))
            ray.end()
            assert collector.end() == 0
    history = home / f"store/cluster-history/raycluster/default/test/{SESSION}"
    for node, number in zip(nodes, ("1", "2"), strict=True):
        assert (history / node / "logs/worker.out").read_text() == f"of {node}\n"
        (events,) = (history / node / "job_events").rglob("*.gz")
        assert [json.loads(line)["eventId"] for line in gzip.decompress(events.read_bytes()).splitlines()] == [number]
    assert {path.name for path in history.iterdir()} == set(nodes)


def test_figures_are_counted(home: Path) -> None:
    """/metrics tells what came in and what is waiting."""
    with running(home) as collector:
        collector.post([event(1), event(2), 3])
        text = httpx.get(f"{collector.url}/metrics", trust_env=False).text
    assert "rayhistory_collector_events_received_total 3.0" in text
    assert "rayhistory_collector_events_acked_total 2.0" in text
    assert 'rayhistory_collector_set_aside_total{reason="not an object"} 1.0' in text
    assert "rayhistory_collector_spool_bytes 0.0" not in text
