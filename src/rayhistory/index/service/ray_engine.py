"""Folding on a Ray cluster, with the same functions: sessions side by side, and a large one in parts.

What a function reads of the scratch directory travels with its call, and what it writes comes back: the machines of the
cluster share nothing but the object store. They must have this package installed.
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

from rayhistory.errors import FoldFailed, StoreError, StoreUnavailable, UsageError
from rayhistory.index.build import fold_part, inputs_of_part
from rayhistory.index.engine import Say
from rayhistory.index.fold import FoldJob, FoldReport, estimate, fold, parts_for
from rayhistory.index.manifest import Manifest
from rayhistory.index.sources import list_sources
from rayhistory.layout import Layout
from rayhistory.settings import Settings
from rayhistory.storage import open_store

Files = dict[str, bytes]

_PATIENCE = 5.0


class RayEngine:
    def __init__(self, address: str = "") -> None:
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError:
            raise UsageError("--engine ray needs Ray in this environment: pip install ray") from None
        try:
            _knock(address)
            ray.init(address=address or "auto", log_to_driver=False, logging_level="error")
        except (OSError, ValueError, RuntimeError) as error:
            raise UsageError(f"no Ray cluster at {address or 'auto'}: {error}") from None
        self._ray = ray
        self._whole = ray.remote(_fold_whole)
        self.width = max(1, int(ray.cluster_resources().get("CPU", 1)))
        """How many folds the cluster can run at once."""
        self._pool = _RayPool(ray, self.width)

    async def fold(self, job: FoldJob, say: Say) -> Manifest:
        """As one task of the cluster; a large session as many, which are put together here."""
        try:
            if not await _is_large(job):
                return await self._whole.remote(job)  # type: ignore[no-any-return]
            return await asyncio.to_thread(self._in_parts, job, say)
        except StoreError as error:
            raise StoreUnavailable(str(error)) from error
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, StoreError):
                raise StoreUnavailable(str(cause)) from error
            raise FoldFailed(f"{job.ref.path} could not be folded: {cause or error}") from error

    def _in_parts(self, job: FoldJob, say: Say) -> Manifest:
        return asyncio.run(fold(job, lambda progress, detail: say(FoldReport(progress, detail)), self._pool))

    def close(self) -> None:
        self._pool.shutdown()
        self._ray.shutdown()


def _knock(address: str) -> None:
    """Ray itself would wait for minutes for a cluster that is not there."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), _PATIENCE).close()


async def _is_large(job: FoldJob) -> bool:
    settings = Settings(**job.settings)
    store = open_store(settings)
    try:
        sources = await list_sources(store, Layout(settings.storage_root_dir), job.ref)
        return parts_for(settings, estimate(sources)).number > 1
    finally:
        await store.close()


class _RayPool(Executor):
    """Runs functions on the cluster whose first argument has a scratch directory."""

    def __init__(self, ray: Any, width: int) -> None:
        self._ray = ray
        self._call = ray.remote(_call)
        self._waiting = ThreadPoolExecutor(2 * width)

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        return self._waiting.submit(self._run, function, *arguments)

    def _run(self, function: Callable[..., Any], work: Any, *arguments: Any) -> Any:
        paths = inputs_of_part(work, *arguments) if function is fold_part else []
        given = {str(path.relative_to(work.scratch)): path.read_bytes() for path in paths}
        result, made = self._ray.get(self._call.remote(function, work, arguments, given))
        for name, data in made.items():
            (work.scratch / name).write_bytes(data)
        return result

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._waiting.shutdown(wait, cancel_futures=cancel_futures)


def _call(function: Callable[..., Any], work: Any, arguments: tuple[Any, ...], given: Files) -> tuple[Any, Files]:
    """On the cluster: the function in a scratch directory with what was given; what it wrote is returned too."""
    with tempfile.TemporaryDirectory(prefix="rayhistory-fold-") as directory:
        scratch = Path(directory)
        for name, data in given.items():
            (scratch / name).parent.mkdir(exist_ok=True)
            (scratch / name).write_bytes(data)
        result = function(msgspec.structs.replace(work, scratch=scratch), *arguments)
        made = [path for path in scratch.glob("*.parquet") if path.name not in given]
        return result, {path.name: path.read_bytes() for path in made}


def _fold_whole(job: FoldJob) -> Manifest:
    """On the cluster: a session from its events to its index."""
    with tempfile.TemporaryDirectory(prefix="rayhistory-fold-") as scratch:
        return asyncio.run(fold(msgspec.structs.replace(job, scratch=scratch), lambda _, __: None))
