"""Query results as temporary files, for programs that want whole tables."""

import asyncio
import tempfile
import zipfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

from starlette.responses import FileResponse
from starlette.types import Receive, Scope, Send

from rayhistory.errors import RateLimited, StoreUnavailable
from rayhistory.index.query.open_index import OpenIndex
from rayhistory.index.query.query import Query
from rayhistory.index.service.fair_slots import FairSlots
from rayhistory.server.view import SessionView

PARQUET_TYPE = "application/vnd.apache.parquet"
ARCHIVE_TYPE = "application/zip"
SUPERSEDED_MEMBER = "superseded.parquet"
"""Member of an archive with the file number and row number of each superseded row in the other members."""
MAX_FILES_PER_VISITOR = 2
_MAX_FILES = 16
_RETRY_AFTER_S = 5.0
_MAX_READS = 20
"""Maximum number of attempts to pack files that other processes evict from the cache in the meantime."""


class RowFiles:
    """Writes results to temporary files. The number of files in progress and on disk is limited."""

    def __init__(self) -> None:
        self._slots = FairSlots("downloads of rows")
        self._files: Counter[str] = Counter()

    async def parquet(self, view: SessionView, query: Query, visitor: str) -> FileResponse:
        """Write all rows of a query as one Parquet file."""
        return await self._respond(view, visitor, f"{query.table}.parquet", partial(view.index.write_parquet, query))

    async def archive(
        self, view: SessionView, table: str, visitor: str, *, with_superseded: bool = False
    ) -> FileResponse:
        """Pack the Parquet files of a table as they are stored, without decoding rows.

        If some rows are superseded, the archive either contains a list of them, or one file with only the valid rows.
        """
        write = partial(_write_archive, view.index, table, with_superseded)
        return await self._respond(view, visitor, f"{table}.zip", write)

    async def _respond(
        self, view: SessionView, visitor: str, name: str, write: Callable[[Path], Awaitable[None]]
    ) -> FileResponse:
        """Write a file, then return a response that removes the file once it is sent."""
        async with AsyncExitStack() as stack:
            file = await stack.enter_async_context(self._folder(visitor)) / name
            async with self._slots.acquire(visitor, view.ref.path):
                await write(file)
            return _TemporaryFileResponse(file, stack.pop_all())

    @asynccontextmanager
    async def _folder(self, visitor: str) -> AsyncIterator[Path]:
        if self._files[visitor] >= MAX_FILES_PER_VISITOR or self._files.total() >= _MAX_FILES:
            raise RateLimited("too many downloads of rows at once, retry in a few seconds", _RETRY_AFTER_S)
        self._files[visitor] += 1
        try:
            with tempfile.TemporaryDirectory(prefix="rayhistory-rows-") as folder:
                yield Path(folder)
        finally:
            self._files[visitor] -= 1
            if not self._files[visitor]:
                del self._files[visitor]


class _TemporaryFileResponse(FileResponse):
    """A file that is removed after it was sent, or when the client disconnects."""

    def __init__(self, file: Path, resources: AsyncExitStack) -> None:
        media_type = ARCHIVE_TYPE if file.suffix == ".zip" else PARQUET_TYPE
        super().__init__(file, media_type=media_type, filename=file.name)
        self._resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._resources:
            await super().__call__(scope, receive, send)


async def _write_archive(index: OpenIndex, table: str, with_superseded: bool, archive: Path) -> None:
    for _ in range(_MAX_READS):
        members, hidden = await _stored_members(index, table, with_superseded, archive.parent)
        with suppress(FileNotFoundError):  # evicted by another process
            return await asyncio.to_thread(_pack, members, archive, hidden)
    raise StoreUnavailable(
        "the cache is too small for this download: index tables were deleted while they were read; increase "
        "--cache-size or try again"
    )


async def _stored_members(
    index: OpenIndex, table: str, with_superseded: bool, folder: Path
) -> tuple[dict[str, Path], Sequence[str]]:
    """Return the files of an archive by name, and their hidden columns."""
    has_superseded = index.has_superseded(table)
    files = await index.stored_files(table) if with_superseded or not has_superseded else []
    if not files:
        await index.write_parquet(Query(table), folder / "valid.parquet")
        return {"0.parquet": folder / "valid.parquet"}, ()
    members = {f"{number}.parquet": file for number, file in enumerate(files)}
    if has_superseded:
        members[SUPERSEDED_MEMBER] = folder / SUPERSEDED_MEMBER
        await index.write_superseded(table, members[SUPERSEDED_MEMBER])
    return members, index.hidden_columns(table)


def _pack(members: Mapping[str, Path], archive: Path, hidden: Sequence[str]) -> None:
    """Write an archive without compression, because Parquet files are already compressed.

    Its comment lists the hidden columns.
    """
    with zipfile.ZipFile(archive, "w") as packed:
        for name, file in members.items():
            packed.write(file, name)
        packed.comment = " ".join(hidden).encode()
