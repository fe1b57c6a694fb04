"""Store faults for both stores of a scenario: an S3 server behind a relay, and a directory.

The relay runs in this process. Faults of a directory are injected inside the collector's process, which reads them from
a file (see `faulty_collector`).
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

from support.store_servers.faulty import FaultyServer, _Relay

Response = tuple[int, list[tuple[str, str]], bytes]
STORE_FAULTS = ("down", "5xx", "denied", "throttled", "slow", "reset midway", "acked but timed out", "stale listings")
_STALE_S = 3.0
_ERROR_REPLIES = {"5xx": (500, "InternalError"), "denied": (403, "AccessDenied"), "throttled": (429, "TooManyRequests")}


class _FaultyHandler(_Relay):
    server: "FaultyRelay"

    def do_GET(self) -> None:  # noqa: N802
        fault = self.server.next_kind()
        self.server.requests += 1
        if fault == "reset midway" and self.command == "PUT":
            self.rfile.read(int(self.headers.get("content-length") or 0) // 2)
            self._reset()
            return
        if fault == "stale listings" and self.command == "GET" and "list-type=2" in self.path:
            self._reply(*self.server.stale_listing(self.path, lambda: self._forward(b"")))
            return
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if fault in _ERROR_REPLIES:
            status, code = _ERROR_REPLIES[fault]
            text = f"<Error><Code>{code}</Code><Message>as planned</Message></Error>".encode()
            self._reply(status, [("Retry-After", "1")] if fault == "throttled" else [], text)
            return
        if fault == "down":
            self._reset()
            return
        if fault == "slow":
            time.sleep(self.server.rng.uniform(0.1, 0.8))
        response = self._forward(body)
        if self.command == "GET" and "list-type=2" in self.path:
            self.server.remember(self.path, response)
        if fault == "acked but timed out":
            time.sleep(self.server.rng.uniform(0.1, 0.5))
            self._reset()
            return
        self._reply(*response)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815

    def _reset(self) -> None:
        """Close with zero linger time, which sends a reset."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True


class FaultyRelay(FaultyServer):
    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.RequestHandlerClass = _FaultyHandler
        self.rng = random.Random(0)
        self.requests = 0
        self.injected: Counter[str] = Counter()
        self._share = 0.0
        self._kinds: tuple[str, ...] = ("down",)
        self._listings: dict[str, tuple[float, Response]] = {}

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore broken connections: clients are killed on purpose."""

    def inject(self, share: float, *kinds: str) -> None:
        """Fail this share of requests, each with one of the kinds of fault."""
        with self._lock:
            self._share, self._kinds = share, kinds or ("down",)

    def clear(self) -> None:
        self.inject(0.0)

    def next_kind(self) -> str:
        """Draw the fault of the next request; empty for none."""
        with self._lock:
            if self.rng.random() >= self._share:
                return ""
            kind = self.rng.choice(self._kinds)
            self.injected[kind] += 1
            return kind

    def remember(self, path: str, response: Response) -> None:
        with self._lock:
            self._listings[path] = time.monotonic(), response

    def stale_listing(self, path: str, forward: Callable[[], Response]) -> Response:
        """Repeat the last response to this listing while it is recent enough."""
        at, response = self._listings.get(path) or (time.monotonic(), forward())
        if time.monotonic() - at > _STALE_S:
            response = forward()
        self.remember(path, response)
        return response


@contextmanager
def faulty_relay(upstream: str) -> Iterator[FaultyRelay]:
    server = FaultyRelay(upstream)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class StoreFaultFile:
    """The store faults of a directory, in a file that the collector reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._injected = path.with_suffix(".injected")
        self.clear()

    @property
    def environment(self) -> dict[str, str]:
        return {"FAULT_STORE_FAULTS": str(self._path), "FAULT_INJECTED": str(self._injected)}

    def inject(self, share: float, *kinds: str) -> None:
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"share": share, "kinds": kinds or ["down"]}))
        temporary.replace(self._path)

    def clear(self) -> None:
        self.inject(0.0)

    @property
    def injected(self) -> Counter[str]:
        """Injected faults by kind."""
        return Counter(self._injected.read_text().splitlines() if self._injected.exists() else [])
