"""Our programs as processes, beside a double of Ray's session directory, in place of a pod."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.files import clean_environment

SESSION = "session_2026-11-15_19-18-08_055078_15551"
NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"
BIN = Path(sys.executable).parent
TIMEOUT_S = 60.0
EVENT = {
    "eventId": "ZjSGUkhG4vrPjAzWTaFU7wRBL0Q=",
    "sourceType": "GCS",
    "eventType": "NODE_LIFECYCLE_EVENT",
    "timestamp": "2026-11-15T19:18:10.5Z",
    "severity": "INFO",
    "sessionName": SESSION,
    "nodeLifecycleEvent": {"nodeId": "106Tu7C7PSE7GNyJT1NxH/uvTicOjC1d3i8V8g==", "stateTransitions": []},
}


@contextlib.contextmanager
def fake_ray(root: Path) -> Iterator[socket.socket]:
    """Make the session directory of a running Ray, and yield the socket of its raylet.

    To the collector, Ray runs until the socket is closed.
    """
    session = root / SESSION
    (session / "sockets").mkdir(parents=True)
    (session / "logs").mkdir()
    (session / "logs/raylet.out").write_text("hello from the raylet\n")
    (session / f"metrics_export_port_{NODE}").write_text("1")
    (root / "session_latest").symlink_to(SESSION)
    (root / "raylet_node_id").write_text(f"{NODE}\n")  # written by the hook of KubeRay 1.6
    with socket.socket(socket.AF_UNIX) as raylet:
        raylet.bind(str(session / "sockets/raylet"))
        raylet.listen()
        yield raylet


class Program:
    """A running program, and its output."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self._output = output

    @property
    def text(self) -> str:
        return self._output.read_text()

    def wait_for_log(self, event: str) -> dict[str, Any]:
        """Wait for a log line, and return its fields."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            ended = self.process.poll() is not None
            for line in self.text.splitlines():
                if line.startswith("{") and (fields := json.loads(line))["event"] == event:
                    return fields  # type: ignore[no-any-return]
            assert not ended, f"the program ended: {self.text}"
            assert time.monotonic() < deadline, f"{event!r} was not logged: {self.text}"
            time.sleep(0.1)

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT_S)


@contextlib.contextmanager
def program(command: Sequence[str | Path], environment: Mapping[str, str], home: Path) -> Iterator[Program]:
    """Run a program with this environment and none of our other settings."""
    home.mkdir(parents=True, exist_ok=True)
    output = home / f"output-{time.time_ns()}"
    with output.open("wb") as log:
        process = subprocess.Popen(
            command, env={**clean_environment(), "HOME": str(home), **environment}, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield Program(process, output)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
