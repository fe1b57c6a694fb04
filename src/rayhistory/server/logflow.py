"""The bytes of a log on their way out: piece by piece, as they are appended, and never cut inside a character."""

import asyncio
import codecs
import re
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from rayhistory.server.logfiles import FRESH, Logs, find_file
from rayhistory.server.logfind import Found

BLOCK = 512 << 10
_ANSI = re.compile(rb"\x1b\[[\d;]+m")
_UNFINISHED = re.compile(rb"(?:\x1b(?:\[[\d;]{0,64})?|[\xc0-\xff][\x80-\xbf]{0,2})\Z")
"""The end of a block that may be half of a character or of a colour."""


async def pieces(logs: Logs, found: Found) -> AsyncIterator[bytes]:
    """What was found, as it is."""
    for begin in range(found.start, found.end, BLOCK):
        yield await logs.read(found.node, found.path, begin, min(begin + BLOCK, found.end))


async def followed(
    logs: Logs, found: Found, is_over: Callable[[], Awaitable[bool]], interval: float = 1.0
) -> AsyncIterator[bytes]:
    """What was found, and then what is appended, until nothing more will be. What is complete is not followed.

    A file that is shorter than it was has been rotated: the new one is read from its beginning. One that was moved
    away is followed to where it is.
    """
    over = found.complete or await is_over()
    while True:
        async for piece in pieces(logs, found):
            yield piece
        if over:
            return
        await asyncio.sleep(interval)
        if over := await is_over():
            await asyncio.sleep(FRESH)  # after that, listings have what was written before the end
        file = await find_file(logs, found.node, found.path)
        start = found.end if file.size >= found.end else 0
        found = msgspec.structs.replace(found, path=file.path, start=start, end=file.size)


async def whole_characters(blocks: AsyncIterator[bytes], *, ansi: bool) -> AsyncIterator[bytes]:
    """Blocks that never end inside a character: Ray's client decodes each by itself. Without `ansi`, no colours."""
    rest = b""
    async for more in blocks:
        block = rest + more
        unfinished = _UNFINISHED.search(block[-80:])
        rest = unfinished[0] if unfinished else b""
        if block := block[: len(block) - len(rest)]:
            yield block if ansi else _ANSI.sub(b"", block)
    if rest:
        yield rest


async def texts(blocks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """The same as text; what is not UTF-8 is replaced."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    async for block in blocks:
        if text := decoder.decode(block):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text


async def nothing() -> AsyncIterator[bytes]:
    return
    yield b""


async def begun(blocks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same, with the first block at hand: what is wrong with the store is known before an answer begins."""
    first = [await anext(blocks, b"")]

    async def all_of_them() -> AsyncIterator[bytes]:
        yield first.pop()
        async for block in blocks:
            yield block

    return all_of_them()
