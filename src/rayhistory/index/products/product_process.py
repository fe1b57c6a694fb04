"""Build products in a separate process: `python -m rayhistory.index.products.product_process`.

A separate process isolates memory and CPU from the server. It reads ProductJobs from standard input and writes
ProductReports to standard output, each as a JSON line. The last report of a job has the manifest. The process exits
after any failure.
"""

import asyncio
import contextlib
import resource
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rayhistory.errors import IndexDamaged, RayHistoryError, StoreError
from rayhistory.index.child_process import start_work, write_report
from rayhistory.index.index_objects import file_sha256
from rayhistory.index.manifest import Manifest
from rayhistory.index.overlay import index_store
from rayhistory.index.products.product import BuiltProduct, Product, ProductContext, load_product
from rayhistory.index.products.product_files import ProductFiles
from rayhistory.index.products.product_manifest import (
    MAX_PREVIEW_BYTES,
    ProductFile,
    ProductManifest,
    next_product_generation,
    publish_product,
    read_latest_product,
    unused_product_keys,
)
from rayhistory.index.table_cache import TableCache
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.ref import is_safe_component
from rayhistory.settings import Settings
from rayhistory.storage import Store, open_store

_NICENESS = 15
"""CPU priority of builds. It is lower than that of folds, because most pages need tables and not products."""
_MEMORY_FACTOR = 1.5
_MIN_MEMORY_BYTES = 768 << 20
"""Memory of Python and DuckDB before anything is built."""
_MAX_REUSE_BYTES = 384 << 20
"""A process that needed more memory than this is not reused, so that the memory is freed."""

Report = Callable[[float, str], None]


class ProductJob(msgspec.Struct):
    """Input of the process, as JSON on its standard input."""

    product: str
    """The dotted path of the product."""
    settings: dict[str, Any]
    ref: SessionRef
    tables: Manifest
    scratch: str
    """An empty directory. The caller removes it, so that it does not outlive a killed process."""
    fresh: bool = False
    """True to build without the previous build, because it may be damaged."""


class ProductReport(msgspec.Struct, omit_defaults=True):
    """Output of the process: progress, the manifest, or the reason of a failure."""

    progress: float = 0.0
    detail: str = ""
    manifest: ProductManifest | None = None
    outage: str = ""
    """The error of the store that made the build fail."""
    damage: str = ""
    """The error if the tables or the previous product are damaged."""
    reusable: bool = False
    """True if the process is ready for the next job."""

    @property
    def is_last(self) -> bool:
        return bool(self.manifest or self.outage or self.damage)


class _Stores(NamedTuple):
    store: Store
    indexes: Store
    """The store of tables and products. It differs from `store` if that is read-only."""
    layout: Layout
    cache: TableCache


class _FinishedBuild(NamedTuple):
    built: BuiltProduct
    previous: ProductManifest | None
    began: float


class _Previous:
    """The previous build, for use in a thread other than the event loop's."""

    def __init__(self, manifest: ProductManifest, fetch: Callable[[str], Path]) -> None:
        self.manifest = manifest
        self.fetch = fetch


async def build_product(job: ProductJob, report: Report) -> ProductManifest:
    """Build a product and publish it."""
    began = time.monotonic()
    settings = Settings(**job.settings)
    store, layout = open_store(settings), Layout(settings.storage_root_dir)
    indexes = index_store(store, settings)
    cache = TableCache(Path(settings.cache_dir) / "index", indexes, layout, settings.cache_size)
    product = load_product(job.product)
    try:
        stores = _Stores(store, indexes, layout, cache)
        context = await _context(job, settings, stores, product, report)
        built = await asyncio.to_thread(product.build, context)
        previous = context.previous.manifest if context.previous else None
        return await _publish(stores, job, product, _FinishedBuild(built, previous, began))
    finally:
        await store.close()


async def _context(
    job: ProductJob, settings: Settings, stores: _Stores, product: Product, report: Report
) -> ProductContext:
    loop = asyncio.get_running_loop()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    files = ProductFiles(stores.indexes, stores.layout, stores.cache)

    async def product_file(manifest: ProductManifest, name: str) -> Path:
        return await files.fetch(job.ref, manifest, name)

    previous = None
    if not job.fresh:
        latest = await read_latest_product(stores.indexes, stores.layout, job.ref, product.name, product.version)
        if latest is not None:

            def fetch(name: str) -> Path:
                path: Path = run(files.fetch(job.ref, latest, name))
                return path

            previous = _Previous(latest, fetch)
    scratch = Path(job.scratch) / "product"
    scratch.mkdir()
    return ProductContext(
        ref=job.ref, settings=settings, store=stores.store, indexes=stores.indexes, layout=stores.layout,
        manifest=job.tables, index=stores.cache.open(job.ref, job.tables), scratch=scratch, previous=previous,
        report=report, product_file=product_file, run=run,
    )  # fmt: skip


async def _publish(stores: _Stores, job: ProductJob, product: Product, build: _FinishedBuild) -> ProductManifest:
    _check(product, build.built)
    store, layout, ref = stores.indexes, stores.layout, job.ref
    generation = await next_product_generation(store, layout, ref, product.name)
    folder = f"{generation}-{secrets.token_hex(4)}"
    files = {name: build.previous.files[name] for name in build.built.reused} if build.previous else {}
    for name, path in build.built.files.items():
        files[name] = ProductFile(folder, path.stat().st_size, await asyncio.to_thread(file_sha256, path))
        await store.put(layout.product_file_key(ref, product.name, folder, name), path)
    manifest = ProductManifest(
        product=product.name, version=product.version, generation=generation, build=folder, files=files,
        tables_generation=job.tables.generation, tables_covered=job.tables.covered, closing=job.tables.closing,
        preview=build.built.preview, seconds=round(time.monotonic() - build.began, 3),
    )  # fmt: skip
    published = await publish_product(store, layout, ref, manifest)
    for key, data in build.built.announcements.items():
        await store.put(key, data)
    await _delete_unused(store, layout, ref, product.name, published.generation)
    return published


def _check(product: Product, built: BuiltProduct) -> None:
    """Raise an error if readers would reject the result."""
    unsafe = [name for name in (product.name, *built.files) if not is_safe_component(name)]
    if unsafe:
        raise ValueError(f"product {product.name}: {unsafe[0]!r} is not a safe file name")
    if len(msgspec.json.encode(built.preview)) > MAX_PREVIEW_BYTES:
        raise ValueError(f"product {product.name}: preview is larger than {MAX_PREVIEW_BYTES} bytes")


async def _delete_unused(store: Store, layout: Layout, ref: SessionRef, product: str, generation: int) -> None:
    """Delete builds that nobody reads any more. Errors are left to the next build."""
    with contextlib.suppress(StoreError):
        for key in await unused_product_keys(store, layout, ref, product, generation - 1):
            await store.delete(key)


def _limit_memory(settings: dict[str, Any]) -> None:
    """Make allocations beyond the budget fail, so that the kernel does not kill other processes."""
    limit = max(int(Settings(**settings).index_memory * _MEMORY_FACTOR), _MIN_MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def main() -> None:
    start_work(_NICENESS)
    for line in sys.stdin.buffer:
        _serve(msgspec.json.decode(line, type=ProductJob))


def _serve(job: ProductJob) -> None:
    """Build one product and report the result. Any failure ends the process."""
    _limit_memory(job.settings)

    def report(progress: float, detail: str) -> None:
        write_report(ProductReport(progress, detail))

    try:
        manifest = asyncio.run(build_product(job, report))
    except StoreError as error:
        write_report(ProductReport(outage=str(error)))
        sys.exit(1)
    except IndexDamaged as error:
        write_report(ProductReport(damage=str(error)))
        sys.exit(1)
    except RayHistoryError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
    write_report(ProductReport(1.0, "done", manifest, reusable=_peak_bytes() <= _MAX_REUSE_BYTES))


def _peak_bytes() -> int:
    """Return the peak memory of this program. On Linux, ru_maxrss also includes the process that started it."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
