"""POST /v1/events: the one thing that Ray waits for.

Ray sends the same batch for ever on anything but 2xx, and everything waits behind it. So what can be read is
taken, what cannot is set aside and answered 200 too, and 503 means one thing only: no room on the disk now.
"""

import asyncio
import hmac
import ipaddress
import logging
import time
from functools import lru_cache

from starlette.types import Message, Receive, Scope, Send

from rayhistory.collector.arriving import Arriving, Body
from rayhistory.collector.metrics import Metrics
from rayhistory.collector.routing import RoutingError, sort
from rayhistory.collector.setaside import SetAside
from rayhistory.collector.spool import Spool, SpoolError

log = logging.getLogger(__name__)

_SLOWEST_BODY = 15.0  # Ray itself gives up after 3 s
_LARGE = 8 * 2**20
_MOST_OF_LARGE = 32 * 2**20
_MOST_SESSIONS = 256
_SAMPLE = 2**20
_RETRY_AFTER = (b"retry-after", b"5")
_TEXT = (b"content-type", b"text/plain; charset=utf-8")


class _Refused(Exception):
    def __init__(self, status: int, text: str, reason: str) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason


class Ingest:
    """An ASGI application. `token` is asked for when it is not empty."""

    def __init__(
        self,
        spool: Spool,
        aside: SetAside,
        metrics: Metrics,
        *,
        largest_body: int,
        allow_remote: bool,
        token: str = "",
    ) -> None:
        self._heard: dict[str, str | None] = {}
        """The sessions of which events came, the latest last, each with its node, as far as events tell."""
        self._latest: tuple[str, float] | None = None
        self._spool = spool
        self._aside = aside
        self._metrics = metrics
        self._largest_body = largest_body
        self._allow_remote = allow_remote
        self._token = f"Bearer {token}".encode() if token else b""
        self._arriving = Arriving(_MOST_OF_LARGE)
        self._one_large = asyncio.Lock()
        self._refusing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, text = 200, ""
        try:
            await self._answer(scope, receive)
        except _Refused as refusal:
            status, text = refusal.status, f"{refusal}\n"
            self._metrics.refused.labels(refusal.reason).inc()
        self._metrics.posts.labels(str(status)).inc()
        body = text.encode()
        headers = [(b"content-length", str(len(body)).encode()), *([_TEXT] if text else [])]
        if status == 503:
            headers.append(_RETRY_AFTER)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> None:
        client = scope.get("client")
        if not self._allow_remote and not (client and is_loopback(client[0])):
            raise _Refused(403, "events are taken from this machine only (--events-allow-remote)", "remote")
        size = -1
        authorization = b""
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit():
                size = int(value)
            elif name == b"authorization":
                authorization = value
        if self._token and not hmac.compare_digest(self._token, authorization):
            raise _Refused(401, "events need the token of --events-token as Authorization: Bearer", "token")
        with self._arriving.body(_SLOWEST_BODY) as arriving:
            try:
                async with arriving.timer:
                    body, whole = await self._read(receive, size, arriving)
            except TimeoutError:
                raise _Refused(408, "the body did not arrive", "slow") from None
            arriving.is_here = True
            if not whole:
                await self._aside.keep("too large", body)
            elif len(body) <= _LARGE:
                await self._keep(body)
            else:  # one at a time: what is made of it takes memory too
                async with self._one_large:
                    await self._keep(body)

    async def _keep(self, body: bytes) -> None:
        try:
            await self._take(body)
        except SpoolError as refusal:
            self._say_refused(str(refusal))
            raise _Refused(503, str(refusal), "spool") from None
        if self._refusing:
            self._refusing = False
            log.info("events are taken again")

    async def _read(self, receive: Receive, expected: int, arriving: Body) -> tuple[bytes, bool]:
        """The body, or only its beginning when it is too large: without a 200, Ray would send it again."""
        chunks: list[bytes] = []
        size = 0
        limit = self._largest_body if expected <= self._largest_body else min(_SAMPLE, self._largest_body)
        more = True
        while more:
            message: Message = await receive()
            if message["type"] == "http.disconnect":
                raise _Refused(408, "the body did not arrive", "gone")
            chunk = message.get("body", b"")
            size += len(chunk)
            if size <= limit:
                if size > _LARGE:
                    await self._arriving.hold(arriving, len(chunk))
                chunks.append(chunk)
            elif size > self._largest_body and len(chunks) > 1:
                chunks = [b"".join(chunks)[:_SAMPLE]]
            more = message.get("more_body", False)
        self._metrics.received_bytes.inc(size)
        return b"".join(chunks), size <= self._largest_body

    async def _take(self, body: bytes) -> None:
        try:
            batch = sort(body)
        except RoutingError as error:
            await self._aside.keep(str(error), body)
            return
        self._metrics.received.inc(batch.events)
        for session in [each for each in batch.blocks if not self._spool.has_room_for(each)]:
            lines = b"".join(block.data for block in batch.blocks.pop(session)).splitlines()
            batch.broken += [("too many sessions", line) for line in lines]
        if batch.blocks:
            await self._spool.append(batch.blocks)
            self._metrics.acked.inc(batch.events - len(batch.broken))
        for session in batch.blocks:
            if self._latest is None or self._latest[0] != session:
                self._latest = session, time.monotonic()
            self._hear(session, batch.nodes.get(session))
        for reason, event in batch.broken:
            await self._aside.keep(reason, event)

    def _hear(self, session: str, node: str | None) -> None:
        known = self._heard.pop(session, None)
        self._heard[session] = node or known
        if len(self._heard) > _MOST_SESSIONS:
            del self._heard[next(iter(self._heard))]

    def has_heard_of(self, session: str) -> bool:
        """Whether events of the session came, lately."""
        return session in self._heard

    def sender_of(self, session: str) -> str | None:
        """The node of the session, as far as its events tell."""
        return self._heard.get(session)

    def latest_session(self, at_least: float) -> str | None:
        """The session whose events come now, if they have been coming for so many seconds."""
        if self._latest is None or time.monotonic() - self._latest[1] < at_least:
            return None
        return self._latest[0]

    def _say_refused(self, why: str) -> None:
        if not self._refusing:
            self._refusing = True
            log.error("events are refused, Ray will send them again", extra={"reason": why})


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
