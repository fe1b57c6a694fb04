"""A history server process and fold processes, which scenarios may kill."""

import http.client
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from faults.collector_under_test import free_port

_BIN = Path(sys.executable).parent
_TIMEOUT_S = 120.0


class HistoryProcess:
    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        self._home = home
        self._environment = {**os.environ, **environment, "RAYHISTORY_CACHE_DIR": str(home / "cache")}
        self._environment["RAYHISTORY_VANISHED_AFTER"] = "1s"
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def fold(self, cluster: str, *, kill_rng: random.Random | None = None) -> None:
        """Index all sessions of the cluster, or kill the fold after a random time."""
        command: list[str | Path] = [_BIN / "rayhistory", "index", f"default/{cluster}"]
        with (self._home / "fold.log").open("ab") as log:
            process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
            if kill_rng:
                time.sleep(kill_rng.uniform(0.3, 2.0))
                process.kill()
            code = process.wait(_TIMEOUT_S * 2)
        assert kill_rng or code == 0, (
            f"fold failed with exit status {code}: {(self._home / 'fold.log').read_text()[-2000:]}"
        )

    def start(self) -> None:
        with (self._home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [_BIN / "historyserver", "--host", "127.0.0.1", "--port", str(self._port)],
                env=self._environment, stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    def open_and_disconnect(self, cluster: str, session: str) -> None:
        """Request the session's tasks and disconnect before the response."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=0.3)
        try:
            connection.request("GET", f"/s/default/{cluster}/{session}/api/v0/tasks")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()

    def tasks(self, cluster: str, session: str) -> list[dict[str, Any]]:
        """Return the tasks that the server serves; waits until the session is indexed."""
        deadline = time.monotonic() + _TIMEOUT_S
        path = f"/s/default/{cluster}/{quote(session)}/api/v0/tasks?limit=10000&detail=1"
        while True:
            status, body = self._get(path)
            if status == 200:
                return list(json.loads(body)["data"]["result"]["result"])
            assert time.monotonic() < deadline, f"server responded {status}: {body[:500]!r}"
            time.sleep(0.2)

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            return 0, str(error).encode()
        finally:
            connection.close()
