"""The previous generation of an index. A fold of new objects fetches only the files that it needs of it."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rayhistory.concurrency import ByteBudget, concurrently
from rayhistory.errors import IndexDamaged, ObjectNotFound
from rayhistory.index.batch_ranges import join_ranges, overlaps
from rayhistory.index.fold.merge import parquet
from rayhistory.index.fold.part_tables import DEPENDS, KEYS, SUPERSEDED, TASK_COUNTS, UNEXECUTED, PartFile, count_flags
from rayhistory.index.fold.sources import Source
from rayhistory.index.fold.table_files import Database
from rayhistory.index.index_objects import PromisedObject
from rayhistory.index.manifest import Manifest, Part, StoredFile
from rayhistory.sessions import Layout, SessionRef
from rayhistory.storage import Store

T = TypeVar("T")

_CHUNK_BYTES = 16 << 20
_MAX_CONCURRENT_FETCHES = 64
_MAX_BYTES_IN_FLIGHT = 64 << 20

_LOOKUP_TABLES = (KEYS, DEPENDS, UNEXECUTED, SUPERSEDED)

CoveredSource = tuple[str, int, int, int]
"""Key and version of a source, and the first and last generation for which it was read."""


class PartDamaged(IndexDamaged):
    """A file of a part is missing or damaged. The part is rebuilt from events; other parts are kept."""

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(reason)
        self.part = part


class PreviousIndex:
    """The previous generation. Its methods are called from the building thread; files are fetched on the event loop."""

    def __init__(
        self, store: Store, layout: Layout, ref: SessionRef, manifest: Manifest, folder: Path, *, lost: set[str]
    ) -> None:
        """`lost` has the names of parts that cannot be read."""
        self.parts = [part for part in manifest.parts if part.name not in lost]
        self.has_lost_parts = len(self.parts) < len(manifest.parts)
        self._lost_batches = join_ranges(
            batch for part in manifest.parts if part.name in lost for batch in part.batches
        )
        self.manifest = manifest
        self._store = store
        self._layout = layout
        self._ref = ref
        self._folder = folder
        self._loop = asyncio.get_running_loop()
        self._memory = ByteBudget(_MAX_BYTES_IN_FLIGHT)

    async def covered(self) -> list[CoveredSource]:
        """Return the sources that the index covers."""
        listed = await self._store.get(self._layout.covered_key(self._ref, self.manifest.covered_in))
        return msgspec.json.decode(listed, type=list[CoveredSource])

    def is_lost(self, source: CoveredSource) -> bool:
        """Return whether rows of a source were lost with a part."""
        return overlaps(self._lost_batches, source[2], source[3])

    def replaced_by(self, database: Database) -> dict[str, set[str]]:
        """Return, for each part, the parts that replace some of its rows."""
        found: dict[str, set[str]] = {}
        for file in self.fetch_whole(SUPERSEDED):
            for (name,) in database.execute(f"SELECT DISTINCT part FROM {parquet([file.path])}").fetchall():
                found.setdefault(name, set()).add(file.part)
        return found

    def superseded_counts(self, database: Database) -> dict[str, int]:
        """Return the number of superseded attempts in each part. If a part is lost, they are counted again."""
        lists = self.superseded() if self.has_lost_parts else []
        if not lists:
            return {part.name: 0 if self.has_lost_parts else part.superseded for part in self.parts}
        return dict(database.execute(f"SELECT part, count(*) FROM {parquet(lists)} GROUP BY part").fetchall())

    async def fetch_table(self, table: str, folder: Path, name: str) -> None:
        """Fetch the files of a table without parts to `<folder>/<name>.<number>.parquet`."""
        files = self.manifest.files.get(table)
        if files is None:
            raise IndexDamaged(f"index is damaged: generation {self.manifest.generation} lacks the table {table}")
        fetches = (self._fetch(table, file, folder / f"{name}.{number}.parquet") for number, file in enumerate(files))
        await concurrently(fetches, _MAX_CONCURRENT_FETCHES)

    async def fetch_lookups(self) -> None:
        """Fetch, from all parts, the tables that every fold reads. Fetch them concurrently."""
        whole = [(part, table) for table in _LOOKUP_TABLES for part in self.parts]
        fetches = (self._fetch_parts(table, [(part, _numbers(part, table))]) for part, table in whole)
        await concurrently(fetches, _MAX_CONCURRENT_FETCHES)

    def prefetch(self, tables: Sequence[str], wanted: Sequence[tuple[Part, Sequence[int]]]) -> None:
        """Fetch the given files of several tables concurrently, for later calls of `fetch_parts`."""
        self._wait(concurrently((self._fetch_parts(table, wanted) for table in tables), len(tables)))

    def fetch_parts(self, table: str, wanted: Iterable[tuple[Part, Iterable[int]]]) -> list[PartFile]:
        """Fetch the given files of a table that is stored in parts."""
        return self._wait(self._fetch_parts(table, [(part, list(numbers)) for part, numbers in wanted]))

    def fetch_whole(self, table: str, parts: Iterable[Part] | None = None) -> list[PartFile]:
        """Fetch every file of a table that is stored in parts. `parts` limits this to some parts."""
        wanted = self.parts if parts is None else parts
        return self.fetch_parts(table, ((part, _numbers(part, table)) for part in wanted))

    def superseded(self) -> list[str]:
        """Fetch the lists of superseded rows of all parts, and return the paths of the copies."""
        return [file.path for file in self.fetch_whole(SUPERSEDED)]

    def task_counts(self, database: Database) -> dict[str, int]:
        """Return the task counts of the index. If a part is lost, tasks are counted again."""
        if not self.has_lost_parts:
            return self.manifest.task_counts
        counts = dict.fromkeys(TASK_COUNTS, 0)
        if keys := [file.path for file in self.fetch_whole(KEYS)]:
            counts = count_flags(database, parquet(keys))
        if superseded := self.superseded():
            names = ", ".join(f"'{part.name}'" for part in self.parts)
            replaced = count_flags(database, f"(FROM {parquet(superseded)} WHERE part IN ({names}))")
            counts = {name: counts[name] - replaced[name] for name in counts}
        return counts

    async def damaged_parts(self) -> set[str]:
        """Return the parts that have a missing or damaged file."""
        found = set()
        for part in self.parts:
            try:
                for table, files in part.files.items():
                    for file in files:
                        await self._check(part, table, file)
            except PartDamaged:
                found.add(part.name)
        return found

    async def check_small_tables(self) -> None:
        """Raise IndexDamaged if a table without parts is missing or damaged."""
        for table, files in self.manifest.files.items():
            for file in files:
                await self._check(None, table, file)

    async def _check(self, part: Part | None, table: str, file: StoredFile) -> None:
        path = self._folder / "checked.parquet"
        await self._fetch(table, file, path, part)
        await asyncio.to_thread(path.unlink)

    async def _fetch_parts(self, table: str, wanted: Sequence[tuple[Part, Sequence[int]]]) -> list[PartFile]:
        found, fetches = [], []
        for part, numbers in wanted:
            files = part.files.get(table, [])
            for number in numbers:
                path = self._folder / f"{part.name}.{table}.{number}.parquet"
                first_row = sum(file.rows for file in files[:number])
                found.append(PartFile(part.name, str(path), first_row, part.superseded > 0))
                if not path.exists():
                    fetches.append(self._fetch(table, files[number], path, part))
        await concurrently(fetches, _MAX_CONCURRENT_FETCHES)
        return found

    async def _fetch(self, table: str, file: StoredFile, path: Path, part: Part | None = None) -> None:
        """Download a file in chunks. The last request asks for one byte more, to detect an object that is too long."""
        key = self._layout.index_file_key(self._ref, file.folder, table, file.number)
        partial = path.with_suffix(".partial")
        try:
            with partial.open("wb") as target:
                for start in range(0, max(file.size, 1), _CHUNK_BYTES):
                    end = min(start + _CHUNK_BYTES, file.size)
                    async with self._memory.hold(end - start):
                        data = await self._store.get_range(key, start, end + 1 if end == file.size else end)
                        if len(data) != end - start:
                            raise _damaged(part, f"index is damaged: {key} does not have {file.size} bytes")
                        await asyncio.to_thread(target.write, data)
        except ObjectNotFound:
            raise _damaged(part, f"index is damaged: {key} is missing") from None
        if not await asyncio.to_thread(PromisedObject(file.size, file.digest).has_content, partial):
            raise _damaged(part, f"index is damaged: {key} differs from what was written")
        partial.rename(path)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def covered_sources(
    sources: list[Source], unread: Iterable[Source], covered: list[CoveredSource], generation: int
) -> list[CoveredSource]:
    """Return each source with the first and the last generation for which it was read."""
    first = {key: batch for key, _, batch, _ in covered}
    last = {key: batch for key, _, _, batch in covered} | {source.key: generation for source in unread}
    return [
        (source.key, source.version, first.get(source.key, generation), last.get(source.key, generation))
        for source in sources
    ]


def _numbers(part: Part, table: str) -> range:
    return range(len(part.files.get(table, ())))


def _damaged(part: Part | None, reason: str) -> IndexDamaged:
    return PartDamaged(part.name, reason) if part else IndexDamaged(reason)
