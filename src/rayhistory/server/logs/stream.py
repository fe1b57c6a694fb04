"""Streams of log bytes: chunks of a file, split at characters or decoded to text."""

import codecs
import re
from collections.abc import AsyncIterator

from rayhistory.logs.source import LogSource
from rayhistory.server.logs.locate import LogRange

BLOCK_BYTES = 512 << 10
_ANSI = re.compile(rb"\x1b\[[\d;]+m")
_INCOMPLETE_END = re.compile(rb"(?:\x1b(?:\[[\d;]{0,64})?|[\xc0-\xff][\x80-\xbf]{0,2})\Z")
"""Matches the end of a chunk that may be an incomplete UTF-8 character or ANSI colour code."""


async def read_range(logs: LogSource, log_range: LogRange) -> AsyncIterator[bytes]:
    """Yield the bytes of a range, unchanged."""
    for begin in range(log_range.start, log_range.end, BLOCK_BYTES):
        yield await logs.read(log_range.node, log_range.path, begin, min(begin + BLOCK_BYTES, log_range.end))


async def split_at_characters(chunks: AsyncIterator[bytes], *, ansi: bool) -> AsyncIterator[bytes]:
    """Yield chunks that never end inside a character, because Ray's client decodes each chunk by itself.

    Without `ansi`, colour codes are removed. Empty chunks are passed on.
    """
    rest = b""
    async for more in chunks:
        if not more:
            yield more
        chunk = rest + more
        incomplete = _INCOMPLETE_END.search(chunk[-80:])
        rest = incomplete[0] if incomplete else b""
        if chunk := chunk[: len(chunk) - len(rest)]:
            yield chunk if ansi else _ANSI.sub(b"", chunk)
    if rest:
        yield rest


async def decode_text(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield chunks as text. Invalid UTF-8 is replaced."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    async for chunk in chunks:
        if text := decoder.decode(chunk):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text
