"""A relay in front of a store that adds latency to every request, as stores in a data center have.

python benchmarks/delaying_relay.py HOST:PORT --milliseconds 30

It forwards bytes and parses nothing, so that it costs little CPU. Bytes of a client are delayed, those of the server
are not: a request takes that much longer, however large it is. It prints its own port, and then, for every line on its
standard input, the number of requests since the line before.
"""

import argparse
import asyncio
import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator

_CHUNK_BYTES = 1 << 18
_REQUEST = re.compile(rb"(GET|PUT|POST|HEAD|DELETE) /")


class DelayingRelay:
    def __init__(self, host: str, port: int, delay_s: float) -> None:
        self._upstream = (host, port)
        self._delay_s = delay_s
        self.requests = 0

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(*self._upstream)
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        tasks = [
            asyncio.ensure_future(self._receive(reader, chunks)),
            asyncio.ensure_future(self._send_later(chunks, upstream_writer)),
            asyncio.ensure_future(_forward(upstream_reader, writer)),
        ]
        await asyncio.wait(tasks[1:], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for each in (writer, upstream_writer):
            each.close()

    async def _receive(self, reader: asyncio.StreamReader, chunks: "asyncio.Queue[tuple[float, bytes]]") -> None:
        now = asyncio.get_running_loop().time
        data = b"-"
        while data:
            with contextlib.suppress(ConnectionError):
                data = await reader.read(_CHUNK_BYTES)
            self.requests += bool(_REQUEST.match(data))
            chunks.put_nowait((now() + self._delay_s, data))

    async def _send_later(self, chunks: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter) -> None:
        now = asyncio.get_running_loop().time
        while True:
            due, data = await chunks.get()
            await asyncio.sleep(due - now())
            if not data:
                return
            writer.write(data)
            await writer.drain()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()


class RunningRelay:
    """A relay in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.url = f"http://127.0.0.1:{self._line()}"

    def requests(self) -> int:
        """Return the number of requests since the last call."""
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._line())

    def _line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()


@contextlib.contextmanager
def delaying_relay(endpoint: str, milliseconds: float) -> Iterator[RunningRelay]:
    """Start a relay for an address such as `http://127.0.0.1:9000`."""
    command = [sys.executable, __file__, endpoint.removeprefix("http://"), "--milliseconds", str(milliseconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield RunningRelay(process)
        finally:
            process.kill()


async def _serve(host: str, port: int, delay_s: float) -> None:
    relay = DelayingRelay(host, port, delay_s)
    server = await asyncio.start_server(relay.connect, "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    loop = asyncio.get_running_loop()
    seen = 0
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(relay.requests - seen, flush=True)
        seen = relay.requests


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Delay every request to a store.")
    parser.add_argument("upstream", metavar="HOST:PORT")
    parser.add_argument("--milliseconds", type=float, default=30.0)
    arguments = parser.parse_args()
    upstream_host, _, upstream_port = arguments.upstream.rpartition(":")
    asyncio.run(_serve(upstream_host, int(upstream_port), arguments.milliseconds / 1000))
