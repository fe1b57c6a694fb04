"""Tables of a session as of a point in time, built on demand and stored in the local cache beside the index."""

import asyncio
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rayhistory.errors import IndexDamaged, IndexFailed, SessionNotIndexed
from rayhistory.events.merged_tables import TASK_TABLES
from rayhistory.index.fold.as_of import EXIT_DAMAGED, AsOfJob, merged_tables_for
from rayhistory.index.fold.part_tables import SUPERSEDED, PartFile
from rayhistory.index.fold.partitions import Partitions
from rayhistory.index.fold.served_tables import SERVED_TASK_TABLES, merged_table_name
from rayhistory.index.manifest import MERGED_PREFIX, Manifest, Part, StoredFile
from rayhistory.index.query.open_index import OpenIndex
from rayhistory.index.service.fair_slots import FairSlots
from rayhistory.index.service.warm_process import ProcessFailed, WarmProcess
from rayhistory.index.table_cache import TableCache
from rayhistory.sessions import SessionRef
from rayhistory.settings import Settings

_LARGE_TABLES = ("tasks", "task_list", "profile_events", "gaps")
"""Tables that take seconds for a million tasks. Each is built by itself when it is needed, all others together.

Of whole rows of tasks, only the files that can match are built: one for a page by id.
"""
_FORGOTTEN_AFTER_S = 30.0
"""A build that exceeded a request's timeout goes on for this long without anybody waiting, for the next request."""


class _AsOfBuild(msgspec.Struct):
    task: "asyncio.Task[None]"
    waiting: int = 0


class AsOfCaller(msgspec.Struct, frozen=True):
    """The visitor of a point in time, and how long the request waits."""

    visitor: str
    timeout_s: float


class AsOfPoint(msgspec.Struct, frozen=True):
    """A large table of a session, or all others, as of one time."""

    ref: SessionRef
    manifest: Manifest
    ns: int
    large_table: str | None
    files: tuple[int, int] | None = None
    """The first file to build, and the end of the files, of a table with one file per range of task ids."""

    @classmethod
    def of(cls, ref: SessionRef, manifest: Manifest, ns: int, table: str, numbers: Sequence[int]) -> "AsOfPoint":
        files = (min(numbers), max(numbers) + 1) if numbers and table in SERVED_TASK_TABLES else None
        return cls(ref, manifest, ns, table if table in _LARGE_TABLES else None, files)

    @property
    def folder_name(self) -> str:
        what = [self.large_table] if self.large_table else []
        return "-".join([f"{self.manifest.build}@{self.ns}", *what, *map(str, self.files or ())])

    def numbers_of(self, merged_table: str) -> list[int] | None:
        """Return the files to read of a merged table: those with ids of the files to build; None for all."""
        if not self.files or merged_table not in TASK_TABLES:
            return None
        ranges = Partitions(file_count(self.manifest))
        low, high = ranges.bounds(self.files[0])[0], ranges.bounds(self.files[1] - 1)[1]
        found, first = list[int](), 0
        for part in self.manifest.parts:
            count = len(part.files[merged_table_name(merged_table)])
            found += [first + number for number in Partitions(count).between(low, high)]
            first += count
        return found

    @property
    def tables(self) -> list[str]:
        if self.large_table:
            return [self.large_table]
        return [name for name in as_of_tables(self.manifest, self.ns).files if name not in _LARGE_TABLES]


class AsOfCache:
    """Builds as-of tables once for all waiting requests, and only as long as one is waiting."""

    def __init__(self, settings: Settings, cache: TableCache) -> None:
        self._settings = settings
        self._cache = cache
        self._slots = FairSlots("points in time")
        self._processes = WarmProcess("rayhistory.index.fold.as_of")
        self._builds: dict[Path, _AsOfBuild] = {}

    async def open(self, ref: SessionRef, manifest: Manifest, ns: int, caller: AsOfCaller) -> OpenIndex:
        as_of_manifest = as_of_tables(manifest, ns)

        async def fetch(name: str, numbers: Sequence[int], *, refetch: bool) -> list[Path]:
            point = AsOfPoint.of(ref, manifest, ns, name, numbers)
            folder = self._cache.folder(ref, point.folder_name)
            paths = [folder / f"{name}.{number}.parquet" for number in numbers]
            if refetch or not all(path.exists() for path in paths):
                await self._ensure_built(point, folder, caller)
            return paths

        return OpenIndex(as_of_manifest, fetch)

    async def close(self) -> None:
        """Cancel running builds and end their processes."""
        tasks = [build.task for build in self._builds.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._processes.close()

    async def _ensure_built(self, point: AsOfPoint, folder: Path, caller: AsOfCaller) -> None:
        """Wait for the build. It is cancelled when nobody waits for it any more."""
        if folder not in self._builds:
            task = asyncio.create_task(self._build(point, folder, caller.visitor))
            self._builds[folder] = _AsOfBuild(task)
            task.add_done_callback(lambda done: self._done(folder, done))
        build = self._builds[folder]
        build.waiting += 1
        keep_for_s = 0.0
        try:
            await asyncio.wait_for(asyncio.shield(build.task), caller.timeout_s)
        except TimeoutError:
            keep_for_s = _FORGOTTEN_AFTER_S
            raise SessionNotIndexed("building the session as of this time") from None
        finally:
            build.waiting -= 1
            asyncio.get_running_loop().call_later(keep_for_s, self._cancel_if_unused, build)

    def _cancel_if_unused(self, build: _AsOfBuild) -> None:
        if not build.waiting:
            build.task.cancel()

    def _done(self, folder: Path, task: "asyncio.Task[None]") -> None:
        if folder in self._builds and self._builds[folder].task is task:
            del self._builds[folder]
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it: the waiting requests got it

    async def _build(self, point: AsOfPoint, folder: Path, visitor: str) -> None:
        async with self._slots.acquire(visitor, point.ref.path):
            for refetch in (False, True):
                merged = {
                    name: await self._cache.table(
                        point.ref, point.manifest, merged_table_name(name), point.numbers_of(name), refetch=refetch
                    )
                    for name in merged_tables_for(point.tables)
                }
                superseded = []
                if TASK_TABLES[0] in merged and SUPERSEDED in point.manifest.tables:
                    superseded = await self._cache.table(point.ref, point.manifest, SUPERSEDED, refetch=refetch)
                try:
                    await self._run_job(point, merged, superseded, folder)
                except IndexDamaged:
                    if refetch:
                        raise
                else:
                    return

    async def _run_job(
        self, point: AsOfPoint, merged: dict[str, list[Path]], superseded: list[Path], folder: Path
    ) -> None:
        """Build the tables in a child process and publish them at once.

        Open files of an earlier build stay readable.
        """
        partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
        await asyncio.to_thread(partial.mkdir, parents=True)
        job = as_of_job(self._settings, point, merged, superseded, str(partial))
        try:
            await self._processes.run(msgspec.json.encode(job), reuse=point.large_table is None)
            await asyncio.to_thread(self._publish, partial, folder)
        except ProcessFailed as error:
            failure = IndexDamaged if error.exit_status == EXIT_DAMAGED else IndexFailed
            raise failure(f"{point.ref.path} cannot be shown as of this time: {error}") from None
        finally:
            await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)

    def _publish(self, partial: Path, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
        self._cache.make_room(0)


def file_count(manifest: Manifest) -> int:
    """Return the number of ranges of task ids in the tables as of a time."""
    return max((len(part.files["tasks"]) for part in manifest.parts), default=1)


def as_of_tables(manifest: Manifest, ns: int) -> Manifest:
    """Return the manifest of the tables as of a time: served tables only, and those of tasks in one part."""
    served = {name: files for name, files in manifest.files.items() if not name.startswith(MERGED_PREFIX)}
    counts = dict.fromkeys(SERVED_TASK_TABLES, file_count(manifest)) | {"task_list": 1}
    tasks = {name: [StoredFile("", number, 0) for number in range(count)] for name, count in counts.items()}
    return msgspec.structs.replace(manifest, files=served, parts=[Part("", tasks, 0)], closing=None, last_ns=ns)


def as_of_job(
    settings: Settings, point: AsOfPoint, merged: dict[str, list[Path]], superseded: list[Path], folder: str
) -> AsOfJob:
    """Return the job that writes the tables of a point from local copies of the merged tables."""
    written = as_of_tables(point.manifest, point.ns)
    file_counts = {name: len(written.files_of(name)) for name in written.tables}
    paths = {name: list(map(str, files)) for name, files in merged.items()}
    parts = {
        name: part_files(point.manifest, merged_table_name(name), point.numbers_of(name), paths.pop(name))
        for name in TASK_TABLES
        if name in paths
    }
    task_files = point.files or (0, file_count(point.manifest))
    builtin = msgspec.to_builtins(settings)
    return AsOfJob(
        builtin, paths, folder, point.ns, file_counts, point.tables, task_files, parts, list(map(str, superseded))
    )


def part_files(manifest: Manifest, table: str, numbers: Sequence[int] | None, paths: list[str]) -> list[PartFile]:
    """Return local copies of some files of a table in parts, or of all, with the part of each."""
    parts = [part for part in manifest.parts for _ in part.files[table]]
    wanted = parts if numbers is None else [parts[number] for number in numbers]
    return [
        PartFile(part.name, path, is_superseded=part.superseded > 0) for part, path in zip(wanted, paths, strict=True)
    ]
