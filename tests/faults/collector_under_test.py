"""A collector process under test, with a simulated Ray on disk, and a sender that never resends.

The sender remembers every event that got 200. An event that got no response is not sent again, so each event in the
store must be there once.
"""

import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

SESSION = "session_2026-11-15_19-18-08_055078_15551"
NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class CollectorUnderTest:
    def __init__(
        self, *flags: str, spool: Path | None = None, node: str = NODE, cluster: str = "test", **environment: str
    ) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="rhf"))
        self.store = self.home / "store"
        self.spool = spool or self.home / "spool"
        self.port = free_port()
        self.node, self.cluster = node, cluster
        self.process: subprocess.Popen[bytes] | None = None
        self._flags, self._environment = flags, environment
        self._starts = 0
        self._raylet: socket.socket | None = None
        self.begin_session(SESSION)

    def begin_session(self, name: str) -> Path:
        """Simulate a start of Ray: a new session directory, and a raylet socket that listens."""
        if self._raylet:
            self._raylet.close()
        directory = self.home / name
        directory.joinpath("sockets").mkdir(parents=True)
        directory.joinpath("logs").mkdir()
        directory.joinpath(f"metrics_export_port_{self.node}").write_text("1")
        self._raylet = socket.socket(socket.AF_UNIX)
        self._raylet.bind(str(directory / "sockets" / "raylet"))
        self._raylet.listen()
        latest = self.home / "session_latest"
        latest.unlink(missing_ok=True)
        latest.symlink_to(directory)
        return directory

    def __enter__(self) -> "CollectorUnderTest":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.end_ray()
        shutil.rmtree(self.home, ignore_errors=True)

    def set(self, **environment: str) -> None:
        """Set environment variables for the next start."""
        self._environment |= environment

    def start(self) -> None:
        self._starts += 1
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, str(Path(__file__).with_name("faulty_collector.py"))),
                    *("--events-host=127.0.0.1", f"--events-port={self.port}", f"--event-data-dir={self.spool}"),
                    *(f"--ray-cluster-name={self.cluster}", *self._flags),
                ],
                env={
                    **os.environ,
                    "STORAGE_BACKEND": "local",
                    "LOCAL_STORAGE_DIR": str(self.store),
                    "RAY_TMP_ROOT": str(self.home),
                    "RAY_DASHBOARD_ADDRESS": "http://127.0.0.1:9",
                    **self._environment,
                    "FAULT_SEED": f"{self._environment.get('FAULT_SEED', 0)} {self._starts}",
                },
                stderr=log,
            )
        self.wait_until(lambda: self.status("/livez") == 200, 120)

    def wait_until(self, condition: Any, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process
            assert self.process.poll() is None, f"collector exited:\n{self.log()[-3000:]}"
            assert time.monotonic() < deadline, f"timeout:\n{self.log()[-3000:]}"
            time.sleep(0.02)

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    def status(self, path: str) -> int:
        return self.get(path)[0]

    def kill(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def spooled(self) -> list[str]:
        """Return the segments of the spool. The collector removes folders meanwhile, which `rglob` does not expect."""
        return [name for _, _, names in os.walk(self.spool) for name in names if name.endswith(".wal")]

    def recover(self) -> None:
        """Restart without faults, and wait until the spool is empty."""
        self.kill()
        self._environment = {}
        self.start()
        self.wait_until(lambda: not self.spooled(), 60)

    def restart(self) -> int:
        """Restart only the collector, as for its container. The second SIGTERM ends the wait for Ray."""
        assert self.process
        self.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(120)
        self.start()
        return code

    def end_ray(self) -> None:
        if self._raylet:
            self._raylet.close()

    def end(self, seconds: float = 60.0) -> int:
        self.end_ray()
        assert self.process
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def log(self) -> str:
        return (self.home / "log").read_text()


class Sender:
    """Posts batches from several threads until stopped."""

    def __init__(self, port: int, seed: int, threads: int = 3, max_batch: int = 40) -> None:
        self.acked: set[str] = set()
        self.statuses: dict[int, int] = {}
        self._port, self._seed, self._max_batch = port, seed, max_batch
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._send, args=(n,)) for n in range(threads)]

    def __enter__(self) -> "Sender":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _send(self, number: int) -> None:
        rng = random.Random(f"{self._seed} {number}")
        count = 0
        connection: http.client.HTTPConnection | None = None
        while not self._stop.is_set():
            names = [f"{number}-{count + n}" for n in range(rng.randrange(1, self._max_batch))]
            count += len(names)
            body = json.dumps([event(name, rng) for name in names]).encode()
            try:
                connection = connection or http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
                connection.request("POST", "/v1/events", body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                response.read()
            except (OSError, http.client.HTTPException):
                if connection:
                    connection.close()
                connection = None
                time.sleep(0.01)
                continue
            with self._lock:
                self.statuses[response.status] = self.statuses.get(response.status, 0) + 1
                if response.status == 200:
                    self.acked.update(names)
            if response.status != 200:
                time.sleep(0.05)


def event(name: str, rng: random.Random) -> dict[str, Any]:
    job = {"jobId": rng.choice(["AQAAAA==", "AgAAAA=="]), "taskId": rng.randbytes(24).hex()}
    nested = {"taskDefinitionEvent": job} if rng.random() < 0.7 else {"actorLifecycleEvent": {"pad": "x" * 50}}
    kind = "TASK_DEFINITION_EVENT" if "taskDefinitionEvent" in nested else "ACTOR_LIFECYCLE_EVENT"
    return {"eventId": name, "eventType": kind, "sourceType": "CORE_WORKER", "sessionName": SESSION, **nested}
