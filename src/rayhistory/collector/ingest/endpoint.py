"""POST /v1/events, to which Ray exports its events.

Ray retries a batch forever unless it gets 2xx, and later batches wait. So every readable batch is stored. A malformed
batch is quarantined and also gets 200. Only a full or failing disk gets 503.
"""

import asyncio
import hmac
import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable
from functools import lru_cache

from starlette.types import Message, Receive, Scope, Send

from rayhistory.collector.ingest.body_budget import BodyBudget, IncomingBody
from rayhistory.collector.ingest.driver_watch import DriverWatch
from rayhistory.collector.ingest.event_routing import RoutingError, route_batch
from rayhistory.collector.spool.quarantine import Quarantine
from rayhistory.collector.spool.spool import Spool, SpoolError
from rayhistory.collector.telemetry import Telemetry

log = logging.getLogger(__name__)

_BODY_TIMEOUT_S = 15.0  # Ray itself gives up after 3 s
_LARGE_BODY_BYTES = 8 * 2**20
_BODIES_BUDGET = 24 * 2**20
_MAX_REMEMBERED_SESSIONS = 256
_SAMPLE_BYTES = 2**20
_RETRY_AFTER = (b"retry-after", b"5")
_TEXT = (b"content-type", b"text/plain; charset=utf-8")


class _Refused(Exception):
    def __init__(self, status: int, text: str, reason: str) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason


class IngestEndpoint:
    """The ASGI application behind /v1/events. If `token` is not empty, clients must send it."""

    def __init__(
        self,
        spool: Spool,
        quarantine: Quarantine,
        telemetry: Telemetry,
        *,
        max_body_bytes: int,
        allow_remote: bool,
        token: str = "",
        admits: Callable[[str], Awaitable[bool]] | None = None,
    ) -> None:
        """`admits` decides whether events of a session are accepted, if the session has not sent any recently."""
        self.drivers = DriverWatch()
        self._reported_nodes: dict[str, str | None] = {}
        """Node id by session for recent sessions, latest last. None if the events have no node id."""
        self._latest: tuple[str, float] | None = None
        self._spool = spool
        self._quarantine = quarantine
        self._telemetry = telemetry
        self._max_body_bytes = max_body_bytes
        self._allow_remote = allow_remote
        self._admits = admits
        self._token = f"Bearer {token}".encode() if token else b""
        self._body_budget = BodyBudget(_BODIES_BUDGET)
        self._large_body_lock = asyncio.Lock()
        self._refusing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, text = 200, ""
        try:
            await self._handle(scope, receive)
        except _Refused as refusal:
            status, text = refusal.status, f"{refusal}\n"
            self._telemetry.refused.labels(refusal.reason).inc()
        self._telemetry.posts.labels(str(status)).inc()
        body = text.encode()
        headers = [(b"content-length", str(len(body)).encode()), *([_TEXT] if text else [])]
        if status == 503:
            headers.append(_RETRY_AFTER)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _handle(self, scope: Scope, receive: Receive) -> None:
        client = scope.get("client")
        if not self._allow_remote and not (client and is_loopback(client[0])):
            raise _Refused(
                403, "events are accepted only from this host, unless --events-allow-remote is set", "remote"
            )
        content_length = -1
        authorization = b""
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit():
                content_length = int(value)
            elif name == b"authorization":
                authorization = value
        if self._token and not hmac.compare_digest(self._token, authorization):
            raise _Refused(
                401, "missing or wrong token: send the value of --events-token as Authorization: Bearer", "token"
            )
        with self._body_budget.body(_BODY_TIMEOUT_S) as incoming:
            try:
                async with incoming.timer:
                    body, whole = await self._read(receive, content_length, incoming)
            except TimeoutError:
                raise _Refused(408, "timed out waiting for the request body", "slow") from None
            incoming.complete = True
            if not whole:
                await self._quarantine.add("too_large", body)
            elif len(body) <= _LARGE_BODY_BYTES:
                await self._store(body)
            else:  # one at a time: routing a body needs several times its memory
                async with self._large_body_lock:
                    await self._store(body)

    async def _store(self, body: bytes) -> None:
        try:
            await self._route_and_spool(body)
        except SpoolError as error:
            if not self._refusing:
                self._refusing = True
                log.error("cannot store events, answering 503 so that Ray retries", extra={"reason": str(error)})  # noqa: TRY400
            raise _Refused(503, str(error), "spool") from None
        if self._refusing:
            self._refusing = False
            log.info("spool is writable again, accepting events")

    async def _read(self, receive: Receive, content_length: int, incoming: IncomingBody) -> tuple[bytes, bool]:
        """Return the body and True, or the start of a body that is too large and False.

        A body that is too large is read to its end and gets 200, because Ray would otherwise retry it forever.
        """
        chunks: list[bytes] = []
        size = 0
        limit = self._max_body_bytes if content_length <= self._max_body_bytes else _SAMPLE_BYTES
        limit = min(limit, self._max_body_bytes)
        more = True
        while more:
            message: Message = await receive()
            if message["type"] == "http.disconnect":
                raise _Refused(408, "client disconnected before the end of the request body", "gone")
            chunk = message.get("body", b"")
            size += len(chunk)
            if size <= limit:
                await self._body_budget.reserve(incoming, len(chunk))
                chunks.append(chunk)
            elif size > self._max_body_bytes and len(chunks) > 1:
                chunks = [b"".join(chunks)[:_SAMPLE_BYTES]]
            more = message.get("more_body", False)
        self._telemetry.received_bytes.inc(size)
        return b"".join(chunks), size <= self._max_body_bytes

    async def _route_and_spool(self, body: bytes) -> None:
        try:
            batch = route_batch(body)
        except RoutingError as error:
            await self._quarantine.add(str(error), body)
            return
        self._telemetry.events_received.inc(batch.event_count)
        for session in list(batch.blocks):
            if reason := await self._reason_to_quarantine(session):
                lines = b"".join(block.data for block in batch.blocks.pop(session)).splitlines()
                batch.malformed += [(reason, line) for line in lines]
        if batch.blocks:
            await self._spool.append(batch.blocks)
            self._telemetry.events_acked.inc(batch.event_count - len(batch.malformed))
        for session in batch.blocks:
            if self._latest is None or self._latest[0] != session:
                self._latest = session, time.monotonic()
            self._remember(session, batch.nodes.get(session))
            self.drivers.observe(session, batch.blocks[session])
        for reason, event in batch.malformed:
            await self._quarantine.add(reason, event)

    async def _reason_to_quarantine(self, session: str) -> str | None:
        if self._admits and session not in self._reported_nodes and not await self._admits(session):
            return "unknown_session"
        return None if self._spool.accepts_session(session) else "too_many_sessions"

    def _remember(self, session: str, node: str | None) -> None:
        before = self._reported_nodes.pop(session, None)
        self._reported_nodes[session] = node or before
        if len(self._reported_nodes) > _MAX_REMEMBERED_SESSIONS:
            del self._reported_nodes[next(iter(self._reported_nodes))]

    def has_events_of(self, session: str) -> bool:
        """Return whether events of the session were received recently."""
        return session in self._reported_nodes

    def reported_node(self, session: str) -> str | None:
        """Return the node id from the session's events, if they have one."""
        return self._reported_nodes.get(session)

    def latest_session(self, min_seconds: float) -> str | None:
        """Return the session of the latest events; None unless only its events have arrived for `min_seconds`."""
        if self._latest is None or time.monotonic() - self._latest[1] < min_seconds:
            return None
        return self._latest[0]


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
