"""Acked events of a collector that is killed: they are in the store within seconds, once."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rayhistory.sessions import Layout, SessionRef
from support.folding import NODE, RECORDED

SESSION = "session_2026-11-15_19-18-08_055078_15551"
EARLIER_SESSION = "session_2026-11-15_18-00-00_000000_10000"
REF = SessionRef.checked("default", "test", SESSION)


class Collector:
    """A collector process with its own directories."""

    def __init__(self, home: Path, *flags: str) -> None:
        self.home = home
        self.store = home / "store"
        self._flags = flags
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = int(server.getsockname()[1])

    def start(self) -> None:
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "rayhistory.collector.main", "--events-host=127.0.0.1"),
                    *(f"--events-port={self.port}", f"--event-data-dir={self.home / 'spool'}"),
                    *("--ray-cluster-name=test", "--log-interval=500ms", "--event-rotation-interval=1h", *self._flags),
                ],
                env={
                    **os.environ,
                    "STORAGE_BACKEND": "local",
                    "LOCAL_STORAGE_DIR": str(self.store),
                    "RAY_TMP_ROOT": str(self.home / "ray"),
                    "RAY_DASHBOARD_ADDRESS": "http://127.0.0.1:9",
                },
                stderr=log,
            )
        eventually(lambda: reachable(f"{self.url}/livez"))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, events: list[dict[str, Any]]) -> None:
        response = httpx.post(f"{self.url}/v1/events", content=json.dumps(events).encode(), trust_env=False)
        assert response.status_code == 200

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0

    def has_uploaded(self) -> bool:
        """Return whether packs or objects with events are in the store: only then is an index worth its time."""
        return any(self.store.rglob("*.pack")) or bool(self.objects())

    def objects(self) -> list[Path]:
        return [path for path in self.store.rglob("*.jsonl.gz") if "_events" in str(path)]

    def tasks(self) -> int:
        """Return the number of tasks after `rayhistory index` has folded the store."""
        command = [sys.executable, "-m", "rayhistory.cli.main", "index", f"--local-storage-dir={self.store}"]
        cache = f"--cache-dir={self.home / 'cache'}"
        found = subprocess.run([*command, cache, SESSION], capture_output=True, text=True, timeout=60, check=False)
        manifests = sorted((self.store / Layout().index_prefix(REF)).glob("manifest-*.json"), key=generation)
        return int(json.loads(manifests[-1].read_text())["counts"].get("tasks", 0)) if found.returncode == 0 else 0

    def seal(self, session: str = SESSION, node: str = NODE) -> dict[str, Any]:
        path = self.store / f"ray-history/seals/default/test/{session}/{node}.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}


def generation(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def reachable(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def eventually(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.1)


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory with a short path, because Ray's sockets are below it."""
    directory = Path(tempfile.mkdtemp(prefix="rh"))
    (directory / "ray").mkdir()
    yield directory
    shutil.rmtree(directory)


@contextlib.contextmanager
def collector(home: Path, *flags: str) -> Iterator[Collector]:
    running = Collector(home, *flags)
    running.start()
    try:
        yield running
    finally:
        running.kill()


@contextlib.contextmanager
def ray(home: Path, session: str = SESSION) -> Iterator[Path]:
    directory = home / "ray" / session
    (directory / "sockets").mkdir(parents=True)
    (directory / "logs").mkdir()
    (directory / f"metrics_export_port_{NODE}").write_text("1")
    with socket.socket(socket.AF_UNIX) as raylet:
        raylet.bind(str(directory / "sockets" / "raylet"))
        raylet.listen()
        latest = home / "ray" / "session_latest"
        latest.unlink(missing_ok=True)
        latest.symlink_to(directory)
        yield directory


def in_session(session: str, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**event, "sessionName": session} for event in events]


EVENTS = in_session(SESSION, RECORDED)


def test_events_outlive_a_node_that_is_lost_before_rotation(home: Path) -> None:
    """A collector that restarts without its spool removes nothing."""
    with ray(home), collector(home, "--role=Head") as running:
        running.post(EVENTS)
        eventually(lambda: running.has_uploaded() and running.tasks() == 23)
        assert running.objects() == []
        running.kill()
        shutil.rmtree(home / "spool")
        assert running.tasks() == 23
        running.start()
        running.post(EVENTS[:10])
        eventually(lambda: running.seal() or len(list(running.store.rglob("*.pack"))) > 1)
        assert running.tasks() == 23


def test_clean_end_leaves_events_in_objects_only(home: Path) -> None:
    """Event streams are dropped from the packs, also those of a killed collector."""
    with collector(home, "--role=Head") as running:
        with ray(home):
            running.post(EVENTS[:50])
            eventually(lambda: list(running.store.rglob("*.pack")))
            running.kill()
            running.start()
            running.post(EVENTS[50:])
            eventually(lambda: running.has_uploaded() and running.tasks() == 23)
        running.end()
        assert running.tasks() == 23
        index = running.store / Layout().index_prefix(REF)
        newest = max(index.glob("*-*/covered.json"), key=lambda path: int(path.parent.name.partition("-")[0]))
        assert not [key for key, *_ in json.loads(newest.read_text()) if "#" in key and ".wal" in key]
        assert running.seal()["stored"] == len(EVENTS)
        assert "late" not in running.seal()


@pytest.mark.parametrize("flags", [(), ("--enable-log-collector=false",)])
def test_events_leave_the_node_in_seconds_without_logs(home: Path, flags: tuple[str, ...]) -> None:
    """Ray's directory is missing, or log collection is off."""
    with collector(home, *flags) as running, ray(home) if flags else contextlib.nullcontext():
        running.post(EVENTS)
        metadata = running.store / Layout().metadata_key(REF)
        metadata.parent.mkdir(parents=True)
        metadata.touch()  # the head's collector writes it
        eventually(lambda: running.has_uploaded() and running.tasks() == 23)
        running.kill()
        shutil.rmtree(home / "spool")
        assert running.tasks() == 23


def test_events_after_the_seal_are_stored_and_counted_as_late(home: Path) -> None:
    """A late event of the previous session is in the store seconds later, and in its seal."""
    with collector(home) as running:
        with ray(home, EARLIER_SESSION):
            running.post(in_session(EARLIER_SESSION, RECORDED[:10]))
            eventually(lambda: list(running.store.rglob("*.pack")))
        with ray(home):
            running.post(EVENTS[:1])
            eventually(lambda: running.seal(EARLIER_SESSION))
            assert "late" not in running.seal(EARLIER_SESSION)
            running.post(in_session(EARLIER_SESSION, RECORDED[10:13]))
            eventually(lambda: running.seal(EARLIER_SESSION).get("late") == 3)
        assert (running.seal(EARLIER_SESSION)["received"], running.seal(EARLIER_SESSION)["stored"]) == (13, 13)
