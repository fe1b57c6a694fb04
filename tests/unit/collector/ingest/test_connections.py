"""The collector's port on a real socket: those who connect and ask nothing."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn

from rayhistory.collector.app import make_app
from rayhistory.collector.connections import Connection
from rayhistory.collector.metrics import Metrics

HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
ASKED = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[int]:
    config = uvicorn.Config(
        make_app(None, Metrics(), lambda: None),
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        timeout_keep_alive=3600,
    )
    server = uvicorn.Server(config)
    with socket.create_server((HERE, 0)) as listener:
        task = asyncio.create_task(server._serve([listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(port: int, source: str) -> Pair:
    return await asyncio.open_connection(HERE, port, local_addr=(source, 0))


async def answer(pair: Pair) -> bytes:
    reader, writer = pair
    writer.write(ASKED)
    return await reader.readuntil(b"ok\n")


async def is_closed(pair: Pair) -> bool:
    with contextlib.suppress(ConnectionError):
        return await pair[0].read(1) == b""
    return True


def test_connections_that_stay_silent_are_closed_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest silent ones make room; those of other machines never take that of this one."""
    monkeypatch.setattr("rayhistory.collector.connections._MOST", 5)
    monkeypatch.setattr("rayhistory.collector.connections.is_loopback", lambda host: host == HERE)

    async def use() -> None:
        async with asyncio.timeout(60), listening() as port:
            ours = [await connect(port, HERE) for _ in range(3)]
            assert b"200 OK" in await answer(ours[0])
            theirs = [await connect(port, ELSEWHERE) for _ in range(12)]
            assert all([await is_closed(each) for each in theirs[:7]])
            for each in (*ours, *theirs[7:]):
                assert b"200 OK" in await answer(each)
            for _, writer in (*ours, *theirs):
                writer.close()

    asyncio.run(use())


@pytest.mark.parametrize("said", [b"", b"GET /livez HTTP/1.1\r\nHost", ASKED])
def test_a_connection_that_asks_nothing_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    """Also when it has asked before, and when what it asks has no end."""
    monkeypatch.setattr("rayhistory.collector.connections.KEEP_ALIVE", 0.3)

    async def use() -> None:
        async with asyncio.timeout(60), listening() as port:
            reader, writer = await connect(port, HERE)
            writer.write(said)
            assert (b"200 OK" in await reader.read()) is (said == ASKED)
            writer.close()

    asyncio.run(use())
