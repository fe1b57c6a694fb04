"""A real collector process, and a double of the files and sockets of Ray."""

import contextlib
import gzip
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

SESSION = "session_2026-11-15_19-18-08_055078_15551"
NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"


class FakeRay:
    """The session directory of a running Ray: a port file, logs, and the listening socket of the raylet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._raylet: socket.socket | None = None

    def start(self, session: str = SESSION, node: str = NODE) -> Path:
        directory = self.root / session
        (directory / "sockets").mkdir(parents=True, exist_ok=True)
        (directory / "sockets" / "raylet").unlink(missing_ok=True)
        (directory / "logs").mkdir(exist_ok=True)
        (directory / "logs" / "raylet.out").write_text("hello from the raylet\n")
        (directory / f"metrics_export_port_{node}").write_text("1")
        self._raylet = socket.socket(socket.AF_UNIX)
        self._raylet.bind(str(directory / "sockets" / "raylet"))
        self._raylet.listen()
        latest = self.root / "session_latest"
        latest.unlink(missing_ok=True)
        latest.symlink_to(directory)
        return directory

    def stop(self) -> None:
        if self._raylet:
            self._raylet.close()
            self._raylet = None


class CollectorProcess:
    """A collector in a process of its own, with its own directories."""

    def __init__(self, home: Path, *flags: str, **environment: str) -> None:
        self.home = home
        self.flags = flags
        self.environment = environment
        self.store = home / "store"
        self.spool = home / "spool" / "test_default"
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "CollectorProcess":
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

        def find_listening() -> list[dict[str, Any]]:
            assert process.poll() is None, log.read_text()
            return [line for line in log_lines(log) if line["event"] == "listening"]

        self.port = eventually(find_listening)[0]["port"]
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, body: Any) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx.post(f"{self.url}/v1/events", content=content, trust_env=False, timeout=60)

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()

    def terminate(self, timeout_s: float = 20.0) -> int:
        """Send SIGTERM and return the exit code."""
        assert self.process
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

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


def eventually(condition: Callable[[], Any], timeout_s: float = 15.0) -> Any:
    """Return the first true result of the condition; fail after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"condition not met within {timeout_s} s"
        time.sleep(0.05)
    return found


def log_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path, because the paths of Unix sockets are limited."""
    directory = Path(tempfile.mkdtemp(prefix="rh"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def ray(home: Path) -> Iterator[FakeRay]:
    fake = FakeRay(home)
    yield fake
    fake.stop()


@contextlib.contextmanager
def running_collector(home: Path, *flags: str, **environment: str) -> Iterator[CollectorProcess]:
    collector = CollectorProcess(home, *flags, **environment).start()
    try:
        yield collector
    finally:
        if collector.process and collector.process.poll() is None:
            collector.kill()
