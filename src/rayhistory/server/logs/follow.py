"""Log files that are read while they grow, until their session or job ends."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from starlette.requests import HTTPConnection

from rayhistory.logs.source import LISTING_TTL_S, LogSource, find_file
from rayhistory.server.http.view_routes import resolver_of, selection_of
from rayhistory.server.logs.locate import LogRange
from rayhistory.server.logs.stream import read_range
from rayhistory.sessions import SessionRef
from rayhistory.sessions.catalog import RUNNING


async def follow(
    logs: LogSource, log_range: LogRange, has_ended: Callable[[], Awaitable[bool]], interval: float = 1.0
) -> AsyncIterator[bytes]:
    """Yield a range of a log file, then appended bytes until `has_ended` returns True. Do not follow a complete range.

    If the file became shorter, it was rotated, and the new file is read from its start. If Ray moved the file to its
    directory of old logs, it is followed there. For an empty file, the first chunk is empty, so that the response can
    start at once.
    """
    ended = log_range.complete or await has_ended()
    if log_range.start == log_range.end:
        yield b""
    while True:
        async for chunk in read_range(logs, log_range):
            yield chunk
        if ended:
            return
        await asyncio.sleep(interval)
        if ended := await has_ended():
            await asyncio.sleep(LISTING_TTL_S)  # listings then include everything written before the end
        file = await find_file(logs, log_range.node, log_range.path)
        start = log_range.end if file.size >= log_range.end else 0
        log_range = msgspec.structs.replace(log_range, path=file.path, start=start, end=file.size)


async def session_has_ended(connection: HTTPConnection, ref: SessionRef) -> bool:
    """Return True if the logs will not grow any more: the session has ended, or is shown as of a point in time.

    The session is looked up by its own name. The name `latest` in the URL may select another session by now.
    """
    if selection_of(connection).as_of_ms is not None:
        return True
    catalog = resolver_of(connection).catalog
    return catalog.state(await catalog.find(ref.namespace, ref.cluster, ref.session)) != RUNNING
