"""What a store does on a bad day, for one of two stores: a real S3 server behind a relay, or a directory.

The relay is in this process. A directory is hurt inside the process that uses it (see `faulty_collector`), which reads
from a file what the weather is.
"""

import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from storeservers.faulty import FaultyServer, _Relay

Answer = tuple[int, list[tuple[str, str]], bytes]
WAYS = ("down", "5xx", "denied", "throttled", "slow", "reset midway", "acked but timed out", "stale listings")
_STALE = 3.0
_CODES = {"5xx": (500, "InternalError"), "denied": (403, "AccessDenied"), "throttled": (429, "TooManyRequests")}


class _Troubled(_Relay):
    server: "Relay"

    def do_GET(self) -> None:  # noqa: N802
        way = self.server.next_way()
        self.server.requests += 1
        if way == "reset midway" and self.command == "PUT":
            self.rfile.read(int(self.headers.get("content-length") or 0) // 2)
            self._reset()
            return
        if way == "stale listings" and self.command == "GET" and "list-type=2" in self.path:
            self._reply(*self.server.earlier(self.path, lambda: self._forward(b"")))
            return
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if way in _CODES:
            status, code = _CODES[way]
            text = f"<Error><Code>{code}</Code><Message>as planned</Message></Error>".encode()
            self._reply(status, [("Retry-After", "1")] if way == "throttled" else [], text)
            return
        if way == "down":
            self._reset()
            return
        if way == "slow":
            time.sleep(self.server.dice.uniform(0.1, 0.8))
        answer = self._forward(body)
        if self.command == "GET" and "list-type=2" in self.path:
            self.server.remember(self.path, answer)
        if way == "acked but timed out":
            time.sleep(self.server.dice.uniform(0.1, 0.5))
            self._reset()
            return
        self._reply(*answer)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815

    def _reset(self) -> None:
        """Closing with what is unsent thrown away is a reset, not an end."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True


class Relay(FaultyServer):
    def __init__(self, behind: str) -> None:
        super().__init__(behind)
        self.RequestHandlerClass = _Troubled
        self.dice = random.Random(0)
        self.requests = 0
        self.hurt: Counter[str] = Counter()
        self._share, self._ways = 0.0, ("down",)
        self._listings: dict[str, tuple[float, Answer]] = {}

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients are killed here all the time."""

    def be(self, share: float, *ways: str) -> None:
        with self._lock:
            self._share, self._ways = share, ways or ("down",)

    def next_way(self) -> str:
        with self._lock:
            if self.dice.random() >= self._share:
                return ""
            way = self.dice.choice(self._ways)
            self.hurt[way] += 1
            return way

    def remember(self, path: str, answer: Answer) -> None:
        with self._lock:
            self._listings[path] = time.monotonic(), answer

    def earlier(self, path: str, ask: Callable[[], Answer]) -> Answer:
        """The answer that was given a moment ago, if there was one."""
        at, answer = self._listings.get(path) or (time.monotonic(), ask())
        if time.monotonic() - at > _STALE:
            answer = ask()
        self.remember(path, answer)
        return answer


@contextmanager
def relayed(behind: str) -> Iterator[Relay]:
    server = Relay(behind)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Notice:
    """The weather over a directory, as a file that the hurt process reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hurt = path.with_suffix(".hurt")
        self.be(0.0)

    @property
    def environment(self) -> dict[str, str]:
        return {"FAULT_WEATHER": str(self._path), "FAULT_HURT": str(self._hurt)}

    def be(self, share: float, *ways: str) -> None:
        half = self._path.with_suffix(".half")
        half.write_text(json.dumps({"share": share, "ways": ways or ["down"]}))
        half.replace(self._path)

    @property
    def hurt(self) -> Counter[str]:
        return Counter(self._hurt.read_text().splitlines() if self._hurt.exists() else [])
