"""Query results as temporary Parquet files, for programs that want whole tables."""

import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from starlette.responses import FileResponse
from starlette.types import Receive, Scope, Send

from rayhistory.errors import RateLimited
from rayhistory.index.query.query import Query
from rayhistory.index.service.fair_slots import FairSlots
from rayhistory.server.view import SessionView

MEDIA_TYPE = "application/vnd.apache.parquet"
MAX_FILES_PER_VISITOR = 2
_MAX_FILES = 16
_RETRY_AFTER_S = 5.0


class RowFiles:
    """Writes results to temporary files: few at once, and few on disk while clients download them."""

    def __init__(self) -> None:
        self._slots = FairSlots("Parquet files")
        self._files: Counter[str] = Counter()

    async def respond(self, view: SessionView, query: Query, visitor: str) -> FileResponse:
        """Write all rows of a query, then return a response that removes the file once it is sent."""
        async with AsyncExitStack() as stack:
            folder = await stack.enter_async_context(self._folder(visitor))
            file = folder / f"{query.table}.parquet"
            async with self._slots.acquire(visitor, view.ref.path):
                await view.index.write_parquet(query, file)
            return _TemporaryFileResponse(file, stack.pop_all())

    @asynccontextmanager
    async def _folder(self, visitor: str) -> AsyncIterator[Path]:
        if self._files[visitor] >= MAX_FILES_PER_VISITOR or self._files.total() >= _MAX_FILES:
            raise RateLimited("too many Parquet files are being sent, retry in a few seconds", _RETRY_AFTER_S)
        self._files[visitor] += 1
        try:
            with tempfile.TemporaryDirectory(prefix="rayhistory-rows-") as folder:
                yield Path(folder)
        finally:
            self._files[visitor] -= 1
            if not self._files[visitor]:
                del self._files[visitor]


class _TemporaryFileResponse(FileResponse):
    """A file that is removed when it was sent, or when the client left."""

    def __init__(self, file: Path, resources: AsyncExitStack) -> None:
        super().__init__(file, media_type=MEDIA_TYPE, filename=file.name)
        self._resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._resources:
            await super().__call__(scope, receive, send)
