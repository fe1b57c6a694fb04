"""The real history server, and the real fold, which may be killed like everybody else."""

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

from faults.victim import free_port

_BIN = Path(sys.executable).parent
_PATIENCE = 120.0


class History:
    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        self._home = home
        self._environment = {**os.environ, **environment, "RAYHISTORY_CACHE_DIR": str(home / "cache")}
        self._environment["RAYHISTORY_VANISHED_AFTER"] = "1s"
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def fold(self, cluster: str, *, killed: random.Random | None = None) -> None:
        """All sessions of the cluster; or half of it, when it is killed."""
        command = [_BIN / "rayhistory", "index", f"default/{cluster}"]
        with (self._home / "fold.log").open("ab") as log:
            process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
            if killed:
                time.sleep(killed.uniform(0.3, 2.0))
                process.kill()
            code = process.wait(_PATIENCE * 2)
        assert killed or code == 0, f"the fold ended with {code}: {(self._home / 'fold.log').read_text()[-2000:]}"

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

    def glance(self, cluster: str, session: str) -> None:
        """As somebody who opens the session while all this goes on, and does not wait for the answer."""
        with_answer = http.client.HTTPConnection("127.0.0.1", self._port, timeout=0.3)
        try:
            with_answer.request("GET", f"/s/default/{cluster}/{session}/api/v0/tasks")
            with_answer.getresponse().read()
        except (OSError, http.client.HTTPException):
            pass
        finally:
            with_answer.close()

    def tasks(self, cluster: str, session: str) -> list[dict[str, Any]]:
        """What a visitor is shown, however long the fold takes."""
        deadline = time.monotonic() + _PATIENCE
        path = f"/s/default/{cluster}/{quote(session)}/api/v0/tasks?limit=10000&detail=1"
        while True:
            status, body = self._get(path)
            if status == 200:
                return list(json.loads(body)["data"]["result"]["result"])
            assert time.monotonic() < deadline, f"the server says {status}: {body[:500]!r}"
            time.sleep(0.2)

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            return 0, str(error).encode()
        finally:
            connection.close()
