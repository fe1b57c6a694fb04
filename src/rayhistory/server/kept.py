"""Answers that cost nothing twice: kept compressed, as long as there is room, for whoever asks the same again.

What is kept depends on nothing but the index, which never changes: a session that grew has another generation, and so
other answers. Errors are never kept. The tag of an answer is made from the question, so that a client that has the
answer is told so before anything is computed.

What is long is written piece by piece, and is in memory as a whole only when it is compressed.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

import anyio
import anyio.lowlevel
import msgspec
from isal import igzip, isal_zlib
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from rayhistory import __version__
from rayhistory.server.logflow import begun, nothing
from rayhistory.server.redaction import is_browser
from rayhistory.server.view import SessionView

_BUDGET = 32 << 20
_LARGEST = 8 << 20
_SMALL = 2048
_LEVEL = 1
_GZIP = 31
"""How zlib calls the format of gzip."""
_PIECE = 1 << 20
FEW = 1_000
"""So many rows, and no more, may be made into an answer beside others."""
_PLAIN_HEADERS = {"content-length", "content-type"}
_HEADERS = {"Cache-Control": "no-cache", "Vary": "Accept-Encoding"}


class Kept(msgspec.Struct, frozen=True):
    body: bytes
    media_type: str | None
    compressed: bool


class InPieces(Response):
    """JSON of so many rows at most, which is compressed while it is made, and kept then."""

    def __init__(self, pieces: AsyncIterator[bytes], rows: int) -> None:
        super().__init__(media_type="application/json")
        self.pieces = pieces
        self.rows = rows


class KeptAnswers:
    def __init__(self, budget: int = _BUDGET) -> None:
        self._budget = budget
        self._size = 0
        self._answers: OrderedDict[str, Kept] = OrderedDict()
        self._turns: dict[str, asyncio.Lock] = {}
        self._large = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, tag: str) -> AsyncIterator[None]:
        """Whoever asks the same at the same time waits for the first."""
        async with self._turns.setdefault(tag, asyncio.Lock()):
            try:
                yield
            finally:
                self._turns.pop(tag, None)

    def place(self, rows: int) -> AbstractAsyncContextManager[None]:
        """To be held while an answer of so many rows is made.

        There is one for all that is large: side by side it would be done no sooner, in the memory of all of it. Whoever
        holds it should have fetched what is needed.
        """
        return self._large if rows > FEW else nullcontext()

    async def in_turns(self, pieces: AsyncIterator[bytes], rows: int) -> AsyncIterator[bytes]:
        """The same pieces, of so many rows in all, each made while nobody else makes something large.

        What has begun in a thread goes on when the reader leaves, and the next must wait for that, too.
        """
        while True:
            async with self.place(rows):
                with anyio.CancelScope(shield=True):
                    piece = await anext(pieces, None)
            await anyio.lowlevel.checkpoint()  # the reader may have left meanwhile
            if piece is None:
                return
            yield piece

    def get(self, tag: str) -> Kept | None:
        found = self._answers.get(tag)
        if found:
            self._answers.move_to_end(tag)
        return found

    async def keep(self, tag: str, answer: Response) -> Kept:
        """The answer as it is kept; one that is too large is only made smaller."""
        if isinstance(answer, InPieces):
            body = b"".join([packed async for packed in _compressed(answer.pieces)])
            kept = Kept(body, answer.media_type, compressed=True)
        else:
            kept = await _small_or_packed(answer)
        if len(kept.body) <= min(_LARGEST, self._budget) and tag not in self._answers:
            self._answers[tag] = kept
            self._size += len(kept.body)
            while self._size > self._budget:
                _, oldest = self._answers.popitem(last=False)
                self._size -= len(oldest.body)
        return kept


async def _small_or_packed(answer: Response) -> Kept:
    body, media_type = bytes(answer.body), answer.media_type
    if len(body) <= _SMALL:
        return Kept(body, media_type, compressed=False)
    return Kept(await asyncio.to_thread(igzip.compress, body, _LEVEL), media_type, compressed=True)


def tag_of(request: Request, view: SessionView) -> str:
    """Names the answer to a request. Browsers see less than others do."""
    manifest, selection = view.index.manifest, request.scope["rayhistory.selection"]
    question = (
        __version__, view.ref.path, manifest.generation, manifest.build, manifest.last_ns, manifest.closing, view.state,
        request.scope["path"], request.scope["query_string"], selection.as_of_ms, is_browser(request),
    )  # fmt: skip
    return f'W/"{hashlib.blake2b(msgspec.json.encode(question), digest_size=16).hexdigest()}"'


def can_be_kept(answer: Response) -> bool:
    """Only what was answered well, at once, and with nothing that is not in the body."""
    return type(answer) in (Response, InPieces) and answer.status_code == 200 and set(answer.headers) <= _PLAIN_HEADERS


def is_known(request: Request, tag: str) -> bool:
    """Whether the client has the answer already."""
    return tag in (one.strip() for one in request.headers.get("if-none-match", "").split(","))


def not_changed(tag: str) -> Response:
    return Response(status_code=304, headers={"ETag": tag, **_HEADERS})


async def answer_from(request: Request, tag: str, kept: Kept) -> Response:
    """As the client can read it. Only gzip: Ray's dashboard passes on that browsers read more, and reads no more."""
    headers = {"ETag": tag, **_HEADERS}
    if not kept.compressed:
        return Response(kept.body, 200, headers, kept.media_type)
    if _reads_gzip(request.headers.get("accept-encoding", "")):
        return Response(kept.body, 200, headers | {"Content-Encoding": "gzip"}, kept.media_type)
    unpacked = _unpacked(kept.body)
    first = await anext(unpacked)
    if len(first) < _PIECE:
        return Response(first, 200, headers, kept.media_type)
    return StreamingResponse(_after(first, unpacked), 200, headers, kept.media_type)


async def answer_in_pieces(
    request: Request, pieces: AsyncIterator[bytes], rows: int, headers: dict[str, str] | None = None
) -> Response:
    """JSON of so many rows at most that is too long to be kept: compressed and sent while it is made.

    What is wrong with the store at first is an error; later, the connection breaks off.
    """
    headers = {**_HEADERS, **(headers or {})}
    if _reads_gzip(request.headers.get("accept-encoding", "")):
        pieces, headers = _compressed(pieces), headers | {"Content-Encoding": "gzip"}
    pieces = await begun(request.app.state.answers.in_turns(pieces, rows))
    return StreamingResponse(nothing() if request.method == "HEAD" else pieces, 200, headers, "application/json")


async def _unpacked(body: bytes) -> AsyncIterator[bytes]:
    """Piece by piece: a slow reader does not have the whole in memory."""
    unpacker = isal_zlib.decompressobj(wbits=_GZIP)
    while not unpacker.eof:
        yield await asyncio.to_thread(unpacker.decompress, body, _PIECE)
        body = unpacker.unconsumed_tail


async def _after(first: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in others:
        yield piece


async def _compressed(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    packer = isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, _GZIP)
    async for piece in pieces:
        packed = await asyncio.to_thread(packer.compress, piece)
        del piece  # while the rest waits for its turn
        if packed:
            yield packed
    yield packer.flush()


def _reads_gzip(accepted: str) -> bool:
    for coding in accepted.lower().split(","):
        name, _, weight = coding.partition(";")
        if name.strip() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
