"""Close idle connections and cap their number.

uvicorn waits without a timeout for the first request of a connection, and for the end of a request's headers. Any pod
can open connections. So remote connections have a separate limit and cannot use up the connections of the local Ray.
"""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rayhistory.collector.ingest.endpoint import is_loopback

KEEP_ALIVE_S = 75  # longer than Ray's client keeps a connection open, so Ray never writes to a closed one
_MAX_CONNECTIONS = 256  # local ones; the same number again for remote ones


class BoundedConnection(HttpToolsProtocol):
    """An HTTP connection that is aborted if it idles too long, or if there are too many connections."""

    _idle_since = 0.0
    _is_local = False
    _idle_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._is_local = self.client is not None and is_loopback(self.client[0])
        self._idle_since = self.loop.time()
        self._close_if_idle()
        others = [each for each in self.connections if isinstance(each, BoundedConnection) and self._shares_limit(each)]
        if len(others) >= _MAX_CONNECTIONS:
            min(others, key=lambda each: (each._is_serving(), each._idle_since)).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._idle_timer:
            self._idle_timer.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._idle_since = self.loop.time()

    def _is_serving(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _shares_limit(self, other: "BoundedConnection") -> bool:
        return other is not self and other._is_local == self._is_local and not other.transport.is_closing()

    def _close_if_idle(self) -> None:
        left = self._idle_since + KEEP_ALIVE_S - self.loop.time()
        if left <= 0 and not self._is_serving():
            self.transport.abort()
        else:
            self._idle_timer = self.loop.call_later(left if left > 0 else KEEP_ALIVE_S, self._close_if_idle)
