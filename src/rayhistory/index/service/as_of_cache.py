"""Tables of a session as of a point in time, built on demand and stored in the local cache beside the index."""

import asyncio
import secrets
import shutil
from pathlib import Path

import msgspec

from rayhistory.errors import IndexDamaged, IndexFailed, SessionNotIndexed
from rayhistory.events.merged_tables import TASK_TABLES
from rayhistory.index.fold.as_of import EXIT_DAMAGED, AsOfJob, merged_tables_for
from rayhistory.index.fold.served_tables import SERVED_TASK_TABLES, merged_table_name
from rayhistory.index.manifest import MERGED_PREFIX, Manifest
from rayhistory.index.query.open_index import OpenIndex
from rayhistory.index.service.fair_slots import FairSlots
from rayhistory.index.service.table_cache import TableCache
from rayhistory.index.service.warm_process import ProcessFailed, WarmProcess
from rayhistory.sessions import SessionRef
from rayhistory.settings import Settings

_LARGE_TABLES = ("tasks", "task_list", "profile_events", "gaps")
"""Tables that take seconds for a million tasks. Each is built by itself when it is needed, all others together.

Of whole rows of tasks, only the parts that can match are built: one for a page by id.
"""
_FORGOTTEN_AFTER_S = 30.0
"""A build that exceeded a request's timeout goes on for this long without anybody waiting, for the next request."""


class _Build(msgspec.Struct):
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
    parts: tuple[int, int] | None
    """First part, and end of the parts, of a table with one part per range of task ids."""

    @classmethod
    def of(cls, ref: SessionRef, manifest: Manifest, ns: int, table: str, parts: range) -> "AsOfPoint":
        return cls(
            ref,
            manifest,
            ns,
            table if table in _LARGE_TABLES else None,
            (parts.start, parts.stop) if table in SERVED_TASK_TABLES else None,
        )

    @property
    def folder_name(self) -> str:
        what = [self.large_table] if self.large_table else []
        return "-".join([f"{self.manifest.build}@{self.ns}", *what, *map(str, self.parts or ())])

    def parts_of(self, merged_table: str) -> range | None:
        """Return the parts to read of a merged table; None for all."""
        return range(*self.parts) if self.parts and merged_table in TASK_TABLES else None

    @property
    def tables(self) -> list[str]:
        return [self.large_table] if self.large_table else [n for n in self.manifest.files if n not in _LARGE_TABLES]


class AsOfCache:
    """Builds as-of tables once for all waiting requests, and only as long as one is waiting."""

    def __init__(self, settings: Settings, cache: TableCache) -> None:
        self._settings = settings
        self._cache = cache
        self._slots = FairSlots("points in time")
        self._processes = WarmProcess("rayhistory.index.fold.as_of")
        self._builds: dict[Path, _Build] = {}

    async def open(self, ref: SessionRef, manifest: Manifest, ns: int, caller: AsOfCaller) -> OpenIndex:
        served = {name: sizes for name, sizes in manifest.files.items() if not name.startswith(MERGED_PREFIX)}
        as_of_manifest = msgspec.structs.replace(manifest, files=served, closing=None, last_ns=ns)

        async def fetch(name: str, parts: range, *, refetch: bool) -> list[Path]:
            point = AsOfPoint.of(ref, manifest, ns, name, parts)
            folder = self._cache.folder(ref, point.folder_name)
            paths = [folder / f"{name}.{part}.parquet" for part in parts]
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
            self._builds[folder] = _Build(task)
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

    def _cancel_if_unused(self, build: _Build) -> None:
        if not build.waiting:
            build.task.cancel()

    def _done(self, folder: Path, task: "asyncio.Task[None]") -> None:
        if folder in self._builds and self._builds[folder].task is task:
            del self._builds[folder]
        if not task.cancelled():
            task.exception()  # whoever waited has got it

    async def _build(self, point: AsOfPoint, folder: Path, visitor: str) -> None:
        async with self._slots.acquire(visitor, point.ref.path):
            for refetch in (False, True):
                merged = {
                    name: await self._cache.table(
                        point.ref, point.manifest, merged_table_name(name), point.parts_of(name), refetch=refetch
                    )
                    for name in merged_tables_for(point.tables)
                }
                try:
                    await self._run_job(point, merged, folder)
                except IndexDamaged:
                    if refetch:
                        raise
                else:
                    return

    async def _run_job(self, point: AsOfPoint, tables: dict[str, list[Path]], folder: Path) -> None:
        """Build the tables in a child process and publish them at once.

        Open files of an earlier build stay readable.
        """
        parts = {name: len(sizes) for name, sizes in point.manifest.files.items()}
        merged = {name: list(map(str, paths)) for name, paths in tables.items()}
        partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
        await asyncio.to_thread(partial.mkdir, parents=True)
        first = point.parts[0] if point.parts else 0
        job = AsOfJob(msgspec.to_builtins(self._settings), merged, str(partial), point.ns, parts, point.tables, first)
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
