"""A relay between a client and its store that injects faults."""

import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit

_NOT_FORWARDED = {"connection", "transfer-encoding", "content-length", "date", "server"}


class Fault(NamedTuple):
    """A fault: an error reply, a reset or a slow reply; optionally after the store has handled the request."""

    status: int = 0
    code: str = "InternalError"
    headers: tuple[tuple[str, str], ...] = ()
    reset: bool = False
    reaches_store: bool = False
    seconds_per_byte: float = 0


class _Relay(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "FaultyServer"

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.seen.append((time.monotonic(), self.command, self.path))
        fault = self.server.next_fault(self.command, self.path)
        response = self._forward(body) if fault is None or fault.reaches_store else None
        if fault is not None and fault.reset:
            # Closing with zero linger time sends a reset.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif fault is not None and fault.status:
            text = f"<Error><Code>{fault.code}</Code><Message>as planned</Message></Error>".encode()
            self._reply(fault.status, list(fault.headers), text)
        elif response is not None:
            self._reply(*response, seconds_per_byte=fault.seconds_per_byte if fault else 0)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = http.client.HTTPConnection(*self.server.upstream, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "content-length"}
        upstream.request(self.command, self.path, body or None, headers)
        response = upstream.getresponse()
        response_headers = [
            (name, value) for name, value in response.getheaders() if name.lower() not in _NOT_FORWARDED
        ]
        if self.command == "HEAD":
            response_headers.append(("content-length", response.getheader("content-length") or "0"))
        return response.status, response_headers, response.read()

    def _reply(self, status: int, headers: list[tuple[str, str]], body: bytes, seconds_per_byte: float = 0) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            for number in range(len(body)) if seconds_per_byte else ():
                self.wfile.write(body[number : number + 1])
                time.sleep(seconds_per_byte)
            if not seconds_per_byte:
                self.wfile.write(body)
        except OSError:
            self.close_connection = True  # the client has given up, as it should

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        pass


class FaultyServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Relay)
        parts = urlsplit(upstream)
        self.upstream = (parts.hostname or "", parts.port or 80)
        self.seen: list[tuple[float, str, str]] = []
        self._faults: list[Fault] = []
        self._always: Fault | None = None
        self._matches: Callable[[str, str], bool] = lambda method, path: True
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def plan(self, *faults: Fault, always: Fault | None = None, method: str = "") -> None:
        """Set one fault for each of the next requests, and `always` for all later ones. `method` selects requests."""
        with self._lock:
            self._faults, self._always = list(faults), always
            self._matches = lambda requested, path: method in ("", requested)
            self.seen.clear()

    def next_fault(self, method: str, path: str) -> Fault | None:
        with self._lock:
            if not self._matches(method, path):
                return None
            return self._faults.pop(0) if self._faults else self._always


@contextmanager
def faulty(upstream: str) -> Iterator[FaultyServer]:
    server = FaultyServer(upstream)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
