"""Connections that ask nothing end, and there are never too many.

uvicorn waits without end for the first request of a connection, and for the end of a request's headers. Any pod can
open connections: those of other machines have a number of their own, and leave room for Ray.
"""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rayhistory.collector.ingest import is_loopback

KEEP_ALIVE = 75  # longer than Ray's client keeps a connection: who closes last never hits a closed one
_MOST = 256  # from this machine, and again as many from all others


class Connection(HttpToolsProtocol):
    _silent_since = 0.0
    _is_local = False
    _end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._is_local = self.client is not None and is_loopback(self.client[0])
        self._silent_since = self.loop.time()
        self._look_again()
        alike = [each for each in self.connections if isinstance(each, Connection) and self._competes_with(each)]
        if len(alike) >= _MOST:
            min(alike, key=lambda each: (each._is_asking(), each._silent_since)).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._end:
            self._end.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._silent_since = self.loop.time()

    def _is_asking(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _competes_with(self, other: "Connection") -> bool:
        return other is not self and other._is_local == self._is_local and not other.transport.is_closing()

    def _look_again(self) -> None:
        left = self._silent_since + KEEP_ALIVE - self.loop.time()
        if left <= 0 and not self._is_asking():
            self.transport.abort()
        else:
            self._end = self.loop.call_later(left if left > 0 else KEEP_ALIVE, self._look_again)
