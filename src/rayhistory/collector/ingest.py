"""POST /v1/events: the one thing that Ray waits for.

Ray sends the same batch for ever on anything but 2xx, and everything waits behind it. So what can be read is
taken, what cannot is set aside and answered 200 too, and 503 means one thing only: no room on the disk now.
"""

import asyncio
import ipaddress
import logging
import time
from collections import Counter, defaultdict
from functools import lru_cache

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from rayhistory.collector.metrics import Metrics
from rayhistory.collector.routing import RoutingError, route
from rayhistory.collector.setaside import SetAside
from rayhistory.collector.spool import Spool, SpoolError

log = logging.getLogger(__name__)

_SLOWEST_BODY = 60.0
_RETRY_AFTER = {"Retry-After": "5"}
_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_one = msgspec.json.Decoder(msgspec.Raw).decode


class Ingest:
    def __init__(
        self, spool: Spool, aside: SetAside, metrics: Metrics, *, largest_body: int, allow_remote: bool
    ) -> None:
        self.senders: dict[str, str] = {}
        """The node of each session, as far as its events tell."""
        self._latest: tuple[str, float] | None = None
        self._spool = spool
        self._aside = aside
        self._metrics = metrics
        self._largest_body = largest_body
        self._allow_remote = allow_remote
        self._refusing = False

    async def __call__(self, request: Request) -> Response:
        response = await self._answer(request)
        self._metrics.posts.labels(str(response.status_code)).inc()
        return response

    async def _answer(self, request: Request) -> Response:
        if not self._allow_remote and not (request.client and is_loopback(request.client.host)):
            self._metrics.refused.labels("remote").inc()
            return PlainTextResponse("events are taken from this machine only (--events-allow-remote)\n", 403)
        try:
            async with asyncio.timeout(_SLOWEST_BODY):
                body, whole = await self._read(request)
        except (ClientDisconnect, TimeoutError):
            return PlainTextResponse("the body did not arrive\n", 408)
        if not whole:
            await self._aside.keep("too large", body)
            return Response()
        try:
            await self._take(body)
        except SpoolError as refusal:
            self._refused(str(refusal))
            return PlainTextResponse(f"{refusal}\n", 503, _RETRY_AFTER)
        if self._refusing:
            self._refusing = False
            log.info("events are taken again")
        return Response()

    async def _read(self, request: Request) -> tuple[bytes, bool]:
        """The body, or only its beginning when it is too large: without a 200, Ray would send it again."""
        chunks: list[bytes] = []
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size <= self._largest_body:
                chunks.append(chunk)
        self._metrics.received_bytes.inc(size)
        return b"".join(chunks), size <= self._largest_body

    async def _take(self, body: bytes) -> None:
        try:
            events = _one_per_line(body)
        except (msgspec.DecodeError, RecursionError):
            await self._aside.keep("not JSON", body)
            return
        lines, counts, broken = self._sort(events)
        self._metrics.received.inc(len(events))
        if lines:
            await self._spool.append({session: b"".join(parts) for session, parts in lines.items()})
            self._metrics.acked.inc(counts.total())
        for session, count in counts.items():
            if self._latest is None or self._latest[0] != session:
                self._latest = session, time.monotonic()
            self._metrics.sessions[session].received += count
        for reason, event in broken:
            await self._aside.keep(reason, event)

    def _sort(self, events: list[bytes]) -> tuple[dict[str, list[bytes]], Counter[str], list[tuple[str, bytes]]]:
        """Spool records per session, how many events they are, and what has no place."""
        lines: defaultdict[str, list[bytes]] = defaultdict(list)
        counts: Counter[str] = Counter()
        broken: list[tuple[str, bytes]] = []
        for event in events:
            try:
                session, category, node = route(event)
                if not event.isascii():
                    event.decode()
            except RoutingError as reason:
                broken.append((str(reason), event))
            except UnicodeDecodeError:
                broken.append(("not UTF-8", event))
            else:
                lines[session] += (category, b" ", event, b"\n")
                counts[session] += 1
                if node:
                    self.senders[session] = node
        return lines, counts, broken

    def latest_session(self, at_least: float) -> str | None:
        """The session whose events come now, if they have been coming for so many seconds."""
        if self._latest is None or time.monotonic() - self._latest[1] < at_least:
            return None
        return self._latest[0]

    def _refused(self, why: str) -> None:
        self._metrics.refused.labels("spool").inc()
        if not self._refusing:
            self._refusing = True
            log.error("events are refused, Ray will send them again", extra={"reason": why})


def _one_per_line(body: bytes) -> list[bytes]:
    """The elements of an array, or the one object, without line breaks; or DecodeError, or RecursionError."""
    try:
        events = [bytes(event) for event in _array(body)]
    except msgspec.ValidationError:
        events = [bytes(_one(body))]
    if b"\n" in body or b"\r" in body:
        events = [msgspec.json.format(event, indent=-1) for event in events]
    return events


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
