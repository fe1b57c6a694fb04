"""Tables of a session as of a point in time, built on demand and stored in the local cache."""

import asyncio
import secrets
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeVar

import msgspec

from rayhistory.errors import IndexDamaged, IndexFailed, SessionNotIndexed
from rayhistory.index.fold.as_of import AS_OF_TABLES, EXIT_DAMAGED, AsOfJob
from rayhistory.index.fold.served_tables import merged_table_name
from rayhistory.index.manifest import MERGED_PREFIX, Manifest
from rayhistory.index.query.open_index import FetchTable, OpenIndex
from rayhistory.index.query.table_sources import AS_OF_VIEWS, AsOfSources
from rayhistory.index.service.fair_slots import FairSlots
from rayhistory.index.service.warm_process import ProcessFailed, WarmProcess
from rayhistory.index.table_cache import TableCache
from rayhistory.sessions import SessionRef
from rayhistory.settings import Settings

T = TypeVar("T")

_MAX_READS_PER_VISITOR = 32
_FORGOTTEN_AFTER_S = 30.0
"""Time for which a build goes on after its last request timed out, so that the next request finds it."""


class _AsOfBuild(msgspec.Struct):
    task: "asyncio.Task[None]"
    waiting: int = 0


class AsOfCaller(msgspec.Struct, frozen=True):
    """The visitor who requests a point in time, and how long the request waits."""

    visitor: str
    timeout_s: float


class AsOfPoint(msgspec.Struct, frozen=True):
    """The small tables of a session as of one time, or (if `gaps`) its table of gaps, for which all tasks are read."""

    ref: SessionRef
    manifest: Manifest
    ns: int
    gaps: bool = False

    @property
    def folder_name(self) -> str:
        return f"{self.manifest.build}@{self.ns}" + ("-gaps" if self.gaps else "")

    @property
    def sources(self) -> AsOfSources:
        return AsOfSources(as_of_tables(self.manifest, self.ns), self.ns)

    @property
    def needed(self) -> list[str]:
        """Names of the tables that are read to compute this point."""
        tasks = ["tasks", *self.sources.needed(["tasks"])] if self.gaps else []
        return list(dict.fromkeys((*map(merged_table_name, AS_OF_TABLES), *tasks)))

    @property
    def tables(self) -> list[str]:
        """Names of the tables that are computed for this point."""
        if self.gaps:
            return ["gaps"]
        return [name for name in self.manifest.files if not name.startswith(MERGED_PREFIX) and name != "gaps"]


class _AsOfIndex(OpenIndex):
    """An index as of a point in time. It holds a slot while it reads tasks, because their rows must be computed."""

    def __init__(
        self,
        manifest: Manifest,
        fetch: FetchTable,
        sources: AsOfSources,
        slot: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        super().__init__(manifest, fetch, sources)
        self._slot = slot

    async def _read_files(self, files: dict[str, list[int]], work: Callable[..., T]) -> T:
        if not any(name in AS_OF_VIEWS for name in files):
            return await super()._read_files(files, work)
        async with self._slot():
            return await super()._read_files(files, work)


class AsOfCache:
    """Builds as-of tables once for all waiting requests. A build is cancelled when no request waits any more."""

    def __init__(self, settings: Settings, cache: TableCache) -> None:
        self._settings = settings
        self._cache = cache
        self._slots = FairSlots("requests for a point in time")
        self._reads = FairSlots("requests for tasks as of a point in time", _MAX_READS_PER_VISITOR)
        self._processes = WarmProcess("rayhistory.index.fold.as_of")
        self._builds: dict[Path, _AsOfBuild] = {}

    async def open(self, ref: SessionRef, manifest: Manifest, ns: int, caller: AsOfCaller) -> OpenIndex:
        async def fetch(name: str, numbers: Sequence[int], *, refetch: bool) -> list[Path]:
            if name not in manifest.files or name.startswith(MERGED_PREFIX):
                table = "tasks" if name == "task_list" else name
                return await self._cache.table(ref, manifest, table, numbers, refetch=refetch)
            point = AsOfPoint(ref, manifest, ns, gaps=name == "gaps")
            folder = self._cache.folder(ref, point.folder_name)
            paths = [folder / f"{name}.{number}.parquet" for number in numbers]
            if refetch or not all(path.exists() for path in paths):
                await self._ensure_built(point, folder, caller)
            return paths

        def slot() -> AbstractAsyncContextManager[None]:
            return self._reads.acquire(caller.visitor, ref.path)

        return _AsOfIndex(as_of_tables(manifest, ns), fetch, AsOfPoint(ref, manifest, ns).sources, slot)

    async def close(self) -> None:
        """Cancel running builds and end their processes."""
        tasks = [build.task for build in self._builds.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._processes.close()

    async def _ensure_built(self, point: AsOfPoint, folder: Path, caller: AsOfCaller) -> None:
        """Wait for the build. Cancel it when nobody waits for it any more."""
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
            raise SessionNotIndexed(
                "the tables of this point in time are still being built, try again in a few seconds"
            ) from None
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
                copies = {
                    name: await self._cache.table(point.ref, point.manifest, name, refetch=refetch)
                    for name in point.needed
                }
                try:
                    await self._run_job(point, copies, folder)
                except IndexDamaged:
                    if refetch:
                        raise
                else:
                    return

    async def _run_job(self, point: AsOfPoint, copies: dict[str, list[Path]], folder: Path) -> None:
        """Build the tables in a child process and publish them.

        Open files of an earlier build stay readable.
        """
        partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
        await asyncio.to_thread(partial.mkdir, parents=True)
        job = as_of_job(self._settings, point, copies, str(partial))
        try:
            await self._processes.run(msgspec.json.encode(job), reuse=not point.gaps)
            await asyncio.to_thread(self._publish, partial, folder)
        except ProcessFailed as error:
            failure = IndexDamaged if error.exit_status == EXIT_DAMAGED else IndexFailed
            raise failure(f"cannot show {point.ref.path} as of this time: {error}") from None
        finally:
            await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)

    def _publish(self, partial: Path, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
        self._cache.make_room(0)


def as_of_tables(manifest: Manifest, ns: int) -> Manifest:
    """Return the manifest of the tables as of a time. Its `task_list` is computed from the files of `tasks`."""
    parts = [
        msgspec.structs.replace(part, files=part.files | {"task_list": part.files["tasks"]}) for part in manifest.parts
    ]
    return msgspec.structs.replace(manifest, parts=parts, closing=None, last_ns=ns)


def as_of_job(settings: Settings, point: AsOfPoint, copies: dict[str, list[Path]], folder: str) -> AsOfJob:
    """Return the job that writes the tables of a point in time from local copies of other tables."""
    merged = {name: list(map(str, copies[merged_table_name(name)])) for name in AS_OF_TABLES}
    file_counts = {name: len(files) for name, files in point.manifest.files.items()}
    tasks = ""
    if point.gaps:
        tasks = point.sources.source("tasks", list(range(len(copies["tasks"]))), copies["tasks"], copies)
    return AsOfJob(msgspec.to_builtins(settings), merged, folder, point.ns, file_counts, point.tables, tasks)
