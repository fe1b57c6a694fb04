"""Build products on demand and after the tables. Each session has at most one build per product, in a child process."""

import asyncio
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rayhistory.errors import IndexDamaged, ProductFailed, ProductNotBuilt, UsageError
from rayhistory.index.leases import Leases
from rayhistory.index.manifest import Manifest
from rayhistory.index.products.product import Product, load_product
from rayhistory.index.products.product_engine import ProductEngine, ProductProcesses
from rayhistory.index.products.product_files import OpenProduct, ProductFiles
from rayhistory.index.products.product_manifest import ProductManifest, read_latest_product
from rayhistory.index.products.product_process import ProductJob, ProductReport
from rayhistory.index.scratch import scratch_directory
from rayhistory.index.table_cache import TableCache
from rayhistory.lru import LruCache
from rayhistory.sessions import Layout, SessionRef
from rayhistory.settings import Settings
from rayhistory.storage import Store

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S = 25.0
"""Time that a request waits for a build. It is below 30 s, because Ray's dashboard proxy gives up then."""
_LEASE_POLL_INTERVAL_S = 1.0
_FRESH_FOR_S = 5.0
"""Time for which a manifest is used before it is read from the store again."""
_MIN_RETRY_AFTER_S, _MAX_RETRY_AFTER_S = 60.0, 3600.0
"""Time before a failed build is retried: after the first failure, and at most. Each further failure doubles it."""
_PAUSE_FACTOR = 5
"""While a session runs, the pause between two builds is this many times the duration of the last build."""
_MAX_CACHED = 4000

_Key = tuple[tuple[str, str, str], str]
"""A session's identity and the name of a product."""


class _RunningBuild(msgspec.Struct):
    tables: Manifest
    """The newest tables when the build starts."""
    hurry: asyncio.Event
    """An event that is set when a request waits, so that the build starts without a pause."""
    task: "asyncio.Task[ProductManifest] | None" = None
    outgrown: str = ""
    """The last build, if it lacks new data that is not in the tables either, such as log lines."""
    report: ProductReport = msgspec.field(default_factory=lambda: ProductReport(detail="waiting for a free slot"))
    started: bool = False


class _Failure(NamedTuple):
    retry_at: float
    pause_s: float
    reason: str


class _Loaded(NamedTuple):
    path: str
    product: Product


class ProductBuilder:
    """Opens the products of sessions, and builds those that are missing or outdated."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        layout: Layout,
        cache: TableCache,
        products: Iterable[str] = (),
        *,
        engine: ProductEngine | None = None,
    ) -> None:
        """`products` are the dotted paths of all products. `store` is the store for indexes.

        Without an engine, products are built in child processes. There are half as many of them as index workers,
        because most pages need only tables.
        """
        self._settings = settings
        self._store = store
        self._layout = layout
        self._files = ProductFiles(store, layout, cache)
        self._products = {loaded.product.name: loaded for loaded in map(_load, products)}
        self._leases = Leases(store)
        self._scratch = Path(settings.cache_dir) / "scratch"
        self._slots = asyncio.Semaphore(settings.index_workers if engine else max(1, settings.index_workers // 2))
        self._processes = ProductProcesses()
        self._engine: ProductEngine = engine or self._processes
        self._running: dict[_Key, _RunningBuild] = {}
        self._failed: LruCache[_Key, _Failure] = LruCache(_MAX_CACHED)
        self._latest: LruCache[_Key, ProductManifest] = LruCache(_MAX_CACHED, ttl=_FRESH_FOR_S)
        self._others: LruCache[_Key, dict[str, Any]] = LruCache(_MAX_CACHED, ttl=_FRESH_FOR_S)
        """Previews of builds of other versions."""
        self._built_at: LruCache[_Key, tuple[float, float]] = LruCache(_MAX_CACHED)
        """The end and the duration of the last build."""
        self._rebuilt: LruCache[_Key, str] = LruCache(_MAX_CACHED, ttl=_MIN_RETRY_AFTER_S)
        """For each product that was rebuilt because it was damaged: the name of the new build."""

    @property
    def names(self) -> list[str]:
        return list(self._products)

    async def latest(self, ref: SessionRef, name: str) -> ProductManifest | None:
        """Return the manifest of the newest build of our version; None if there is none."""
        key = ref.identity, name
        manifest = self._latest.get(key)
        if manifest is None:
            version = self._loaded(name).product.version
            manifest = await read_latest_product(self._store, self._layout, ref, name, version)
            if manifest is not None:
                self._latest.put(key, manifest)
        return manifest

    async def preview(self, ref: SessionRef, name: str) -> dict[str, Any]:
        """Return the preview of the newest build; until our version has built the product, that of another version.

        So lists have previews after an upgrade, too. They are empty if there is no build.
        """
        if manifest := await self.latest(ref, name):
            return manifest.preview
        key = ref.identity, name
        found = self._others.get(key)
        if found is None:
            manifest = await read_latest_product(self._store, self._layout, ref, name, None)
            found = manifest.preview if manifest else {}
            self._others.put(key, found)
        return found

    async def open(self, ref: SessionRef, name: str, tables: Manifest) -> OpenProduct | None:
        """Return the newest build. Return None if there is none, or only one from before the session's end.

        If the build does not cover the same objects as the tables, start a new one.
        """
        manifest = await self.latest(ref, name)
        is_current = manifest is not None and _covers(manifest, tables)
        if not is_current and not self._recent_failure(ref, name):
            self._start(ref, name, tables).hurry.set()
        if manifest is None or manifest.closing != tables.closing:
            return None
        return self._opened(ref, manifest, tables, is_current=is_current)

    async def stored(self, ref: SessionRef, name: str) -> OpenProduct | None:
        """Return the newest build without checking the session's tables. Start no build."""

        def on_damage(damaged: ProductManifest, reason: str) -> ProductNotBuilt:
            return ProductNotBuilt(f"{damaged.product} is damaged: {reason}")

        manifest = await self.latest(ref, name)
        return OpenProduct(ref, manifest, self._files, on_damage, is_current=False) if manifest else None

    async def extend(self, ref: SessionRef, outgrown: ProductManifest, tables: Manifest) -> None:
        """Start a build for data that is not in the tables, such as new log lines of a running session."""
        name = outgrown.product
        latest = await self.latest(ref, name)
        is_newest = latest is None or latest.build == outgrown.build
        if is_newest and not tables.closing and not self._recent_failure(ref, name):
            self._start(ref, name, tables).outgrown = outgrown.build

    async def wait(
        self, ref: SessionRef, name: str, tables: Manifest, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> OpenProduct:
        """Return the newest build.

        If there is none, wait for the first one, and raise ProductNotBuilt after the timeout.
        """
        deadline = time.monotonic() + timeout_s
        while (opened := await self.open(ref, name, tables)) is None:
            if failure := self._recent_failure(ref, name):
                raise ProductFailed(failure)
            running = self._start(ref, name, tables)
            running.hurry.set()
            assert running.task  # noqa: S101
            try:
                await asyncio.wait_for(asyncio.shield(running.task), max(0, deadline - time.monotonic()))
            except TimeoutError:
                raise ProductNotBuilt(f"{name}: {running.report.detail}", running.report.progress) from None
        return opened

    async def missing(self, ref: SessionRef, tables: Manifest) -> list[str]:
        """Return the products that have no build of our version for the session's current end."""
        manifests = {name: await self.latest(ref, name) for name in self._products}
        return [name for name, found in manifests.items() if found is None or found.closing != tables.closing]

    async def build(self, ref: SessionRef, tables: Manifest) -> list[ProductManifest]:
        """Build all products that are missing or outdated. Try all of them, then raise the first failure."""
        names = [name for name in self._products if not _covers(await self.latest(ref, name), tables)]
        builds = [self._start(ref, name, tables) for name in names]
        for running in builds:
            running.hurry.set()
        tasks = [running.task for running in builds if running.task]
        results = await asyncio.gather(*map(asyncio.shield, tasks), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if isinstance(result, ProductManifest)]

    def build_later(self, ref: SessionRef, tables: Manifest) -> None:
        """If `--index-ahead` is on, start to build all products that are missing or outdated, in the background."""
        for name in self._products if self._settings.index_ahead else ():
            if not self._recent_failure(ref, name):
                self._start(ref, name, tables)

    async def close(self) -> None:
        """Cancel running builds and end their processes."""
        tasks = [running.task for running in self._running.values() if running.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._processes.close()

    def _loaded(self, name: str) -> _Loaded:
        if name not in self._products:
            known = f"use one of {', '.join(self._products)}" if self._products else "this server builds no products"
            raise UsageError(f"unknown product {name!r}: {known}")
        return self._products[name]

    def _opened(self, ref: SessionRef, manifest: ProductManifest, tables: Manifest, *, is_current: bool) -> OpenProduct:
        def on_damage(damaged: ProductManifest, reason: str) -> ProductNotBuilt:
            return self._replace(ref, damaged, tables, reason)

        return OpenProduct(ref, manifest, self._files, on_damage, is_current=is_current)

    def _replace(self, ref: SessionRef, damaged: ProductManifest, tables: Manifest, reason: str) -> ProductNotBuilt:
        """Rebuild a damaged product, unless it has just been rebuilt and is still damaged."""
        key = ref.identity, damaged.product
        fields = {"session": ref.path, "product": damaged.product, "reason": reason}
        if self._rebuilt.get(key) == damaged.build:
            self._record_failure(key, f"{damaged.product} was rebuilt and still cannot be read: {reason}")
        elif not self._recent_failure(ref, damaged.product):
            log.warning("product damaged, rebuilding it", extra=fields)
            self._latest.pop(key)
            self._start(ref, damaged.product, tables, fresh=True).hurry.set()
        return ProductNotBuilt(f"{damaged.product} is damaged and being rebuilt")

    def _start(self, ref: SessionRef, name: str, tables: Manifest, *, fresh: bool = False) -> _RunningBuild:
        key = ref.identity, name
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = _RunningBuild(tables, asyncio.Event())
            running.task = asyncio.create_task(self._build(ref, name, running, fresh=fresh))
            running.task.add_done_callback(lambda done: self._done(ref, name, done))
        elif not running.started:
            running.tables = tables
        return running

    def _done(self, ref: SessionRef, name: str, task: "asyncio.Task[ProductManifest]") -> None:
        key = ref.identity, name
        self._running.pop(key, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._failed.pop(key)
            self._latest.put(key, task.result())
            self._built_at.put(key, (time.monotonic(), task.result().seconds))
            return
        log.error(
            "product build failed, retrying on a later request",
            extra={"session": ref.path, "product": name, "reason": str(error)},
        )
        if isinstance(error, ProductFailed):
            self._record_failure(key, str(error))

    def _record_failure(self, key: _Key, reason: str) -> None:
        previous = self._failed.get(key)
        pause_s = min(previous.pause_s * 2, _MAX_RETRY_AFTER_S) if previous else _MIN_RETRY_AFTER_S
        self._failed.put(key, _Failure(time.monotonic() + pause_s, pause_s, reason))

    def _recent_failure(self, ref: SessionRef, name: str) -> str:
        """Return the error of a recent failed build, or an empty string."""
        failure = self._failed.get((ref.identity, name))
        return failure.reason if failure and time.monotonic() < failure.retry_at else ""

    async def _build(self, ref: SessionRef, name: str, running: _RunningBuild, *, fresh: bool) -> ProductManifest:
        if not running.tables.closing:
            await self._rest(ref, name, running)
        lease = self._layout.product_lease_key(ref, name)
        while True:
            if not fresh and (manifest := await self._wait_for_other_server(ref, name, lease, running)):
                return manifest
            async with self._slots, self._leases.hold(lease) as is_held:
                if not is_held and not fresh:
                    continue  # another server was faster
                running.started = True
                if not fresh and (manifest := await self._covering(ref, name, running)):
                    return manifest
                return await self._build_now(ref, name, running, fresh=fresh)

    async def _covering(self, ref: SessionRef, name: str, running: _RunningBuild) -> ProductManifest | None:
        """Return the newest build if it covers the tables. Another server may have built it in the meantime."""
        self._latest.pop((ref.identity, name))
        manifest = await self.latest(ref, name)
        is_outgrown = manifest is not None and manifest.build == running.outgrown
        return manifest if _covers(manifest, running.tables) and not is_outgrown else None

    async def _build_now(self, ref: SessionRef, name: str, running: _RunningBuild, *, fresh: bool) -> ProductManifest:
        fields: dict[str, Any] = {"session": ref.path, "product": name}
        log.info("building product", extra=fields)
        manifest = await self._run(ref, name, running, fresh=fresh)
        if fresh:
            self._rebuilt.put((ref.identity, name), manifest.build)
        log.info("product built", extra={**fields, "seconds": manifest.seconds})
        return manifest

    async def _rest(self, ref: SessionRef, name: str, running: _RunningBuild) -> None:
        """Pause before the next build of a running session, but only until a request waits for this build."""
        ended_at, seconds = self._built_at.get((ref.identity, name)) or (0.0, 0.0)
        rest_s = ended_at + seconds * _PAUSE_FACTOR - time.monotonic()
        if rest_s > 0:
            try:
                await asyncio.wait_for(running.hurry.wait(), rest_s)
            except TimeoutError:
                return

    async def _run(self, ref: SessionRef, name: str, running: _RunningBuild, *, fresh: bool) -> ProductManifest:
        def on_report(report: ProductReport) -> None:
            running.report = report

        path = self._loaded(name).path
        try:
            with scratch_directory(self._scratch) as scratch:
                settings = msgspec.to_builtins(self._settings)
                job = ProductJob(path, settings, ref, running.tables, str(scratch), fresh)
                return await self._engine.run(job, on_report)
        except (IndexDamaged, ProductFailed) as error:
            if fresh or await self.latest(ref, name) is None:
                raise
            fields = {"session": ref.path, "product": name, "reason": str(error)}
            log.warning("product update failed, rebuilding it", extra=fields)
        except (OSError, msgspec.DecodeError) as error:
            raise ProductFailed(f"building {name} of {ref.path} failed: {error}") from error
        # The previous build may be damaged.
        return await self._run(ref, name, running, fresh=True)

    async def _wait_for_other_server(
        self, ref: SessionRef, name: str, lease: str, running: _RunningBuild
    ) -> ProductManifest | None:
        """Wait while another server holds a lease. Return the build that it publishes, if that covers the tables."""
        while await self._leases.is_held(lease):
            running.report = ProductReport(detail="another server is building it")
            await asyncio.sleep(_LEASE_POLL_INTERVAL_S)
            if manifest := await self._covering(ref, name, running):
                return manifest
        return None


def _load(path: str) -> _Loaded:
    return _Loaded(path, load_product(path))


def _covers(manifest: ProductManifest | None, tables: Manifest) -> bool:
    """Return whether a product was built from tables that cover the same objects and the same end."""
    return manifest is not None and (manifest.tables_covered, manifest.closing) == (tables.covered, tables.closing)
