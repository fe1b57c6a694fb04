"""Idle connections to the collector's port, on a real socket."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn

from rayhistory.collector.app import make_app
from rayhistory.collector.ingest.connections import BoundedConnection
from rayhistory.collector.telemetry import Telemetry

pytestmark = pytest.mark.slow

LOCAL, REMOTE = "127.0.0.1", "127.0.0.2"
REQUEST = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[int]:
    config = uvicorn.Config(
        make_app(None, Telemetry(), lambda: None),
        http=BoundedConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        timeout_keep_alive=3600,
    )
    server = uvicorn.Server(config)
    with socket.create_server((LOCAL, 0)) as listener:
        task = asyncio.create_task(server._serve([listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(port: int, source: str) -> Pair:
    return await asyncio.open_connection(LOCAL, port, local_addr=(source, 0))


async def get(pair: Pair) -> bytes:
    reader, writer = pair
    writer.write(REQUEST)
    return await reader.readuntil(b"ok\n")


async def is_closed(pair: Pair) -> bool:
    with contextlib.suppress(ConnectionError):
        return await pair[0].read(1) == b""
    return True


def test_idle_connections_over_the_limit_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection that has been idle longest is closed; remote connections never displace local ones."""
    monkeypatch.setattr("rayhistory.collector.ingest.connections._MAX_CONNECTIONS", 5)
    monkeypatch.setattr("rayhistory.collector.ingest.connections.is_loopback", lambda host: host == LOCAL)

    async def scenario() -> None:
        async with asyncio.timeout(60), listening() as port:
            local = [await connect(port, LOCAL) for _ in range(3)]
            assert b"200 OK" in await get(local[0])
            remote = [await connect(port, REMOTE) for _ in range(12)]
            assert all([await is_closed(each) for each in remote[:7]])
            for each in (*local, *remote[7:]):
                assert b"200 OK" in await get(each)
            for _, writer in (*local, *remote):
                writer.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("sent", [b"", b"GET /livez HTTP/1.1\r\nHost", REQUEST])
def test_idle_connection_is_closed_after_keep_alive(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """Also after a complete request, and in the middle of one."""
    monkeypatch.setattr("rayhistory.collector.ingest.connections.KEEP_ALIVE_S", 0.3)

    async def scenario() -> None:
        async with asyncio.timeout(60), listening() as port:
            reader, writer = await connect(port, LOCAL)
            writer.write(sent)
            assert (b"200 OK" in await reader.read()) is (sent == REQUEST)
            writer.close()

    asyncio.run(scenario())
