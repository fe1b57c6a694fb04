"""A job with a shell on its node: it can write to Ray's directory, and post to the collector."""

import re
import socket
import time
from pathlib import Path

from support.collector_process import event, running_collector

MIB = 2**20


def test_bodies_that_are_held_back_do_not_fill_the_memory(home: Path) -> None:
    """Forty bodies of 8 MiB, each without its last byte, took 360 MiB; a pod of the collector has 256 MiB."""
    body = b"[" + b" " * (8 * MIB - 100)
    request = b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (len(body) + 1) + body
    with running_collector(home) as collector:
        assert collector.process
        senders = [Sender(collector.port, request) for _ in range(40)]
        try:
            deadline = time.monotonic() + 6
            while time.monotonic() < deadline:
                for sender in senders:
                    sender.send()
                time.sleep(0.01)
            assert collector.post([event(1)]).status_code == 200
            status = Path(f"/proc/{collector.process.pid}/status").read_text()
        finally:
            for sender in senders:
                sender.close()
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak
    assert int(peak[1]) <= 100 * 1024


class Sender:
    """Sends as much of a request as the collector takes."""

    def __init__(self, port: int, request: bytes) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setblocking(False)
        self._rest = memoryview(request)

    def send(self) -> None:
        try:
            self._rest = self._rest[self._socket.send(self._rest[: MIB // 4]) :]
        except OSError:
            return  # full, or cut off

    def close(self) -> None:
        self._socket.close()
