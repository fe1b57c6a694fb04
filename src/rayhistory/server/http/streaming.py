"""Bodies of streamed responses."""

from collections.abc import AsyncIterator


async def empty_body() -> AsyncIterator[bytes]:
    return
    yield b""


async def prefetch_first(blocks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Read the first block at once, so that an error of the store is raised before the response starts."""
    first = [await anext(blocks, b"")]

    async def stream() -> AsyncIterator[bytes]:
        yield first.pop()
        async for block in blocks:
            yield block

    return stream()
