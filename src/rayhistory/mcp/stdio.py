"""The protocol over standard input and output, one message per line."""

import asyncio
import sys

import msgspec

from rayhistory.api.async_history import AsyncHistory
from rayhistory.mcp.protocol import INVALID_REQUEST, Message, ProtocolError, error_message, respond

_MAX_LINE_BYTES = 1 << 20
_MAX_CONCURRENT = 8


async def serve(history: AsyncHistory) -> None:
    """Answer messages until the input ends. Slow requests do not block others."""
    reader = asyncio.StreamReader(limit=_MAX_LINE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    slots, tasks = asyncio.Semaphore(_MAX_CONCURRENT), set[asyncio.Task[None]]()

    async def answer(line: bytes) -> None:
        async with slots:
            if reply := await respond(line, history):
                _write(reply)

    while True:
        try:
            line = await reader.readline()
        except ValueError:  # longer than the limit
            _write(
                error_message(None, ProtocolError(INVALID_REQUEST, f"message is larger than {_MAX_LINE_BYTES} bytes"))
            )
            continue
        if not line:
            break
        if line.strip():
            task = asyncio.create_task(answer(line))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)


def _write(message: Message) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()
