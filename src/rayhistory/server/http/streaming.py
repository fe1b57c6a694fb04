"""Bodies of streamed responses."""

from collections.abc import AsyncIterator


async def empty_body() -> AsyncIterator[bytes]:
    return
    yield b""


async def prefetch_first(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Read the first chunk immediately, so that a store error is raised before the response starts."""
    first = [await anext(chunks, b"")]

    async def stream() -> AsyncIterator[bytes]:
        yield first.pop()
        async for chunk in chunks:
            yield chunk

    return stream()
