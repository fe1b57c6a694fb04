"""Fold and build products on a Ray cluster.

A small session is folded by one task, a large session by one task per partition. Each product is built by one task. Ray
repeats a task whose worker dies, which is safe: an index becomes visible by its manifest, which is written last.

The nodes share only the object store with this machine. Scratch files are sent with a call and its result. This package
must be installed on the nodes.
"""

import asyncio
import importlib
import socket
import tempfile
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from rayhistory.errors import IndexDamaged, IndexFailed, ProductFailed, StoreError, StoreUnavailable, UsageError
from rayhistory.index.fold.build import fold_partition, partition_inputs
from rayhistory.index.fold.fold_process import FoldJob, FoldReport, estimate, fold, partitions_for
from rayhistory.index.fold.sources import list_sources
from rayhistory.index.manifest import Manifest
from rayhistory.index.products.product_engine import OnReport, ProductEngine
from rayhistory.index.products.product_manifest import ProductManifest
from rayhistory.index.products.product_process import ProductJob, build_product
from rayhistory.index.service.fold_engine import ReportProgress
from rayhistory.sessions import Layout
from rayhistory.settings import Settings
from rayhistory.storage import open_store

Files = dict[str, bytes]

_CONNECT_TIMEOUT_S = 5.0


class RayEngine:
    def __init__(self, address: str = "") -> None:
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError:
            raise UsageError("--engine ray needs Ray in this environment: pip install ray") from None
        try:
            _check_reachable(address)
            ray.init(address=address or "auto", log_to_driver=False, logging_level="error")
        except (OSError, ValueError, RuntimeError) as error:
            raise UsageError(f"no Ray cluster at {address or 'auto'}: {error}") from None
        self._ray = ray
        self._fold_session = ray.remote(_fold_session)
        self.cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
        """The number of folds that the cluster can run at once."""
        self._pool = _RayPool(ray, self.cpus)
        self.products: ProductEngine = _RayProducts(ray)

    async def fold(self, job: FoldJob, report_progress: ReportProgress) -> Manifest:
        """Fold a small session as one Ray task. Fold a large one as many tasks, and combine their results here."""
        try:
            if not await _is_large(job):
                return await self._fold_session.remote(job)  # type: ignore[no-any-return]
            return await asyncio.to_thread(self._fold_in_partitions, job, report_progress)
        except StoreError as error:
            raise StoreUnavailable(str(error)) from error
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, StoreError):
                raise StoreUnavailable(str(cause)) from error
            raise IndexFailed(f"indexing {job.ref.path} failed: {cause or error}") from error

    def _fold_in_partitions(self, job: FoldJob, report_progress: ReportProgress) -> Manifest:
        return asyncio.run(
            fold(job, lambda progress, detail: report_progress(FoldReport(progress, detail)), self._pool)
        )

    def close(self) -> None:
        self._pool.shutdown()
        self._ray.shutdown()


class _RayProducts:
    """Builds products on the cluster."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._build = ray.remote(_build_product)

    async def run(self, job: ProductJob, _: OnReport) -> ProductManifest:
        try:
            return await self._build.remote(job)  # type: ignore[no-any-return]
        except StoreError as error:
            raise StoreUnavailable(str(error)) from error
        except IndexDamaged:
            raise
        except self._ray.exceptions.RayError as error:
            name = job.product.rpartition(":")[0]
            reason = getattr(error, "cause", None) or error
            raise ProductFailed(f"{name} of {job.ref.path} failed: {reason}") from error


def _check_reachable(address: str) -> None:
    """Fail fast if there is no cluster, because `ray.init` would wait for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S).close()


async def _is_large(job: FoldJob) -> bool:
    settings = Settings(**job.settings)
    store = open_store(settings)
    try:
        sources = job.sources
        if sources is None:
            sources = await list_sources(store, Layout(settings.storage_root_dir), job.ref)
        return partitions_for(settings, estimate(sources)).count > 1
    finally:
        await store.close()


class _RayPool(Executor):
    """An executor on the cluster for functions whose first argument has a scratch directory."""

    def __init__(self, ray: Any, cpus: int) -> None:
        self._ray = ray
        self._call = ray.remote(_call)
        self._threads = ThreadPoolExecutor(2 * cpus)

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        return self._threads.submit(self._run, function, *arguments)

    def _run(self, function: Callable[..., Any], work: Any, *arguments: Any) -> Any:
        paths = partition_inputs(work, *arguments) if function is fold_partition else []
        inputs = {str(path.relative_to(work.scratch)): path.read_bytes() for path in paths}
        result, outputs = self._ray.get(self._call.remote(function, work, arguments, inputs))
        for name, data in outputs.items():
            (work.scratch / name).write_bytes(data)
        return result

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._threads.shutdown(wait, cancel_futures=cancel_futures)


def _call(function: Callable[..., Any], work: Any, arguments: tuple[Any, ...], inputs: Files) -> tuple[Any, Files]:
    """Run on the cluster: call the function in a scratch directory with its inputs; return its result and outputs."""
    with tempfile.TemporaryDirectory(prefix="rayhistory-fold-") as directory:
        scratch = Path(directory)
        for name, data in inputs.items():
            (scratch / name).parent.mkdir(exist_ok=True)
            (scratch / name).write_bytes(data)
        result = function(msgspec.structs.replace(work, scratch=scratch), *arguments)
        outputs = [path for path in scratch.glob("*.parquet") if path.name not in inputs]
        return result, {path.name: path.read_bytes() for path in outputs}


def _fold_session(job: FoldJob) -> Manifest:
    """Run on the cluster: fold one session from its events to its index."""
    with tempfile.TemporaryDirectory(prefix="rayhistory-fold-") as scratch:
        return asyncio.run(fold(msgspec.structs.replace(job, scratch=scratch), lambda _, __: None))


def _build_product(job: ProductJob) -> ProductManifest:
    """Run on the cluster: build one product of one session."""
    with tempfile.TemporaryDirectory(prefix="rayhistory-product-") as scratch:
        return asyncio.run(build_product(msgspec.structs.replace(job, scratch=scratch), lambda _, __: None))
