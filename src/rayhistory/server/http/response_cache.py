"""Response cache: compressed responses in memory, keyed by request and generation.

A cached response depends only on the index. A session that has grown has another generation, and so other keys. Errors
are never cached. The ETag is computed from the request, so that a client gets 304 before the response is computed.

Long responses are written in chunks, and are held in memory only in compressed form.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

import anyio
import anyio.lowlevel
import msgspec
from isal import igzip, isal_zlib
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response, StreamingResponse

from rayhistory import __version__
from rayhistory.lru import LruCache
from rayhistory.server.http.ray_proxy import is_kuberay_request
from rayhistory.server.http.redaction import is_browser
from rayhistory.server.http.streaming import empty_body, prefetch_first
from rayhistory.server.view import SessionView

LARGE_RESPONSE_ROWS = 1_000
"""Responses with more rows than this are serialized one at a time."""
MAX_CACHED_ROWS = 10_000
"""Maximum number of rows in a cached list. Longer lists, which Ray does not return, are streamed and not cached."""
_MAX_CACHE_BYTES = 32 << 20
_MAX_RESPONSE_BYTES = 8 << 20
_MAX_UNCOMPRESSED_BYTES = 2048
_COMPRESSION_LEVEL = 1
_GZIP_WBITS = 31
_CHUNK_BYTES = 1 << 20
_CACHEABLE_HEADERS = {"content-length", "content-type"}
_HEADERS = {"Cache-Control": "no-cache", "Vary": "Accept-Encoding"}


class CachedResponse(msgspec.Struct, frozen=True):
    body: bytes
    media_type: str | None
    compressed: bool


class UnfinishedResponse(msgspec.Struct, frozen=True):
    """A response that is too large for the cache: its first compressed chunks, and an iterator over the rest."""

    first: list[bytes]
    others: AsyncIterator[bytes]
    rows: int


class ChunkedJsonResponse(Response):
    """JSON of at most `rows` rows. It is compressed while it is made, and cached if it is small enough."""

    def __init__(self, chunks: AsyncIterator[bytes], rows: int) -> None:
        super().__init__(media_type="application/json")
        self.chunks = chunks
        self.rows = rows


class ResponseCache:
    def __init__(self, max_bytes: int = _MAX_CACHE_BYTES) -> None:
        self._responses: LruCache[str, CachedResponse] = LruCache(max_bytes, cost=lambda cached: len(cached.body))
        self._in_flight: dict[str, asyncio.Lock] = {}
        self._large = asyncio.Lock()

    @asynccontextmanager
    async def single_flight(self, etag: str) -> AsyncIterator[None]:
        """Make concurrent requests for the same response wait for the first one."""
        async with self._in_flight.setdefault(etag, asyncio.Lock()):
            try:
                yield
            finally:
                self._in_flight.pop(etag, None)

    def large_response_slot(self, rows: int) -> AbstractAsyncContextManager[None]:
        """Return the lock to hold while a response with this many rows is made.

        Large responses share one lock, because in parallel they would not be faster but need more memory. Prefetch from
        the store before taking it.
        """
        return self._large if rows > LARGE_RESPONSE_ROWS else nullcontext()

    async def one_large_at_a_time(self, chunks: AsyncIterator[bytes], rows: int) -> AsyncIterator[bytes]:
        """Yield the chunks. Each chunk is made only while no other large response makes one.

        If the client disconnects, a chunk that is being made in a thread is finished before the next request continues.
        """
        while True:
            async with self.large_response_slot(rows):
                with anyio.CancelScope(shield=True):
                    chunk = await anext(chunks, None)
            await anyio.lowlevel.checkpoint()  # the client may have disconnected meanwhile
            if chunk is None:
                return
            yield chunk

    def get(self, etag: str) -> CachedResponse | None:
        return self._responses.get(etag)

    async def put(self, etag: str, response: Response) -> CachedResponse | UnfinishedResponse:
        """Compress a response and cache it. Stop if it becomes too large for the cache."""
        if isinstance(response, ChunkedJsonResponse):
            chunks = _compress_chunks(response.chunks)
            first, size = [], 0
            async for chunk in chunks:
                first.append(chunk)
                size += len(chunk)
                if size > _MAX_RESPONSE_BYTES:
                    return UnfinishedResponse(first, chunks, response.rows)
            cached = CachedResponse(b"".join(first), response.media_type, compressed=True)
        else:
            cached = await _compress_body(response)
        if len(cached.body) <= _MAX_RESPONSE_BYTES:
            self._responses.put(etag, cached)
        return cached


def response_cache_of(connection: HTTPConnection) -> ResponseCache:
    cache: ResponseCache = connection.app.state.response_cache
    return cache


async def _compress_body(response: Response) -> CachedResponse:
    body, media_type = bytes(response.body), response.media_type
    if len(body) <= _MAX_UNCOMPRESSED_BYTES:
        return CachedResponse(body, media_type, compressed=False)
    compressed = await asyncio.to_thread(igzip.compress, body, _COMPRESSION_LEVEL)
    return CachedResponse(compressed, media_type, compressed=True)


def etag_for(request: Request, view: SessionView) -> str:
    """Return the ETag for a request. Browsers get redacted responses, and KubeRay's clients get KubeRay's messages."""
    manifest, selection = view.index.manifest, request.scope["rayhistory.selection"]
    key = (
        __version__, view.ref.path, manifest.generation, manifest.build, manifest.last_ns, manifest.closing, view.state,
        request.scope["path"], request.scope["query_string"], selection.as_of_ms, is_browser(request),
        is_kuberay_request(request),
    )  # fmt: skip
    return f'W/"{hashlib.blake2b(msgspec.json.encode(key), digest_size=16).hexdigest()}"'


def is_cacheable(response: Response) -> bool:
    """Return True for responses with status 200 that are not streamed and have no special headers."""
    return (
        type(response) in (Response, ChunkedJsonResponse)
        and response.status_code == 200
        and set(response.headers) <= _CACHEABLE_HEADERS
    )


def client_has(request: Request, etag: str) -> bool:
    return etag in (tag.strip() for tag in request.headers.get("if-none-match", "").split(","))


def not_modified_response(etag: str) -> Response:
    return Response(status_code=304, headers={"ETag": etag, **_HEADERS})


async def cached_response(request: Request, etag: str, cached: CachedResponse) -> Response:
    """Serve a cached response in an encoding that the client accepts.

    Only gzip is used: Ray's dashboard forwards a browser's Accept-Encoding, but can decode only gzip.
    """
    headers = {"ETag": etag, **_HEADERS}
    if not cached.compressed:
        return Response(cached.body, 200, headers, cached.media_type)
    if _accepts_gzip(request.headers.get("accept-encoding", "")):
        return Response(cached.body, 200, headers | {"Content-Encoding": "gzip"}, cached.media_type)
    chunks = _decompress_chunks(cached.body)
    first = await anext(chunks)
    if len(first) < _CHUNK_BYTES:
        return Response(first, 200, headers, cached.media_type)
    return StreamingResponse(_concatenate([first], chunks), 200, headers, cached.media_type)


async def json_list_response(request: Request, chunks: AsyncIterator[bytes], rows: int) -> Response:
    """Respond with JSON of at most `rows` rows.

    A long list is streamed, and other requests are served between its chunks.
    """
    if rows > MAX_CACHED_ROWS:
        return await stream_json_response(request, chunks, rows)
    return ChunkedJsonResponse(chunks, rows)


async def unfinished_response(request: Request, unfinished: UnfinishedResponse) -> Response:
    """Send the first chunks of a response, and then the rest while it is made."""
    if request.method == "HEAD":
        return Response(status_code=200, headers=_HEADERS, media_type="application/json")
    others = response_cache_of(request).one_large_at_a_time(unfinished.others, unfinished.rows)
    chunks = _concatenate(unfinished.first, others)
    if _accepts_gzip(request.headers.get("accept-encoding", "")):
        headers = _HEADERS | {"Content-Encoding": "gzip"}
        return StreamingResponse(chunks, 200, headers, "application/json")
    return StreamingResponse(_decompress_stream(chunks), 200, _HEADERS, "application/json")


async def stream_json_response(
    request: Request, chunks: AsyncIterator[bytes], rows: int, headers: dict[str, str] | None = None
) -> Response:
    """Compress and send JSON of at most `rows` rows while it is made, because it is too long for the cache.

    A store error before the first chunk becomes an error response. A later one aborts the connection.
    """
    headers = {**_HEADERS, **(headers or {})}
    if _accepts_gzip(request.headers.get("accept-encoding", "")):
        chunks, headers = _compress_chunks(chunks), headers | {"Content-Encoding": "gzip"}
    chunks = await prefetch_first(response_cache_of(request).one_large_at_a_time(chunks, rows))
    return StreamingResponse(empty_body() if request.method == "HEAD" else chunks, 200, headers, "application/json")


async def _decompress_chunks(body: bytes) -> AsyncIterator[bytes]:
    """Decompress in chunks, so that a slow client does not hold the whole body in memory."""
    decompressor = isal_zlib.decompressobj(wbits=_GZIP_WBITS)
    while not decompressor.eof:
        yield await asyncio.to_thread(decompressor.decompress, body, _CHUNK_BYTES)
        body = decompressor.unconsumed_tail


async def _decompress_stream(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    decompressor = isal_zlib.decompressobj(wbits=_GZIP_WBITS)
    async for chunk in chunks:
        rest = chunk
        while rest and not decompressor.eof:
            yield await asyncio.to_thread(decompressor.decompress, rest, _CHUNK_BYTES)
            rest = decompressor.unconsumed_tail


async def _concatenate(first: list[bytes], others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while first:
        yield first.pop(0)
    async for chunk in others:
        yield chunk


async def _compress_chunks(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    compressor = isal_zlib.compressobj(_COMPRESSION_LEVEL, isal_zlib.DEFLATED, _GZIP_WBITS)
    async for chunk in chunks:
        compressed = await asyncio.to_thread(compressor.compress, chunk)
        del chunk  # free it before the next one is made
        if compressed:
            yield compressed
    yield compressor.flush()


def _accepts_gzip(accept_encoding: str) -> bool:
    for coding in accept_encoding.lower().split(","):
        name, _, weight = coding.partition(";")
        if name.strip() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
