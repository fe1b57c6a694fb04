"""Engines that run a fold: in a process on this machine, or on a Ray cluster (`ray_engine.py`)."""

import logging
from collections.abc import Callable
from typing import Protocol

from rayhistory.errors import IndexFailed, StoreUnavailable
from rayhistory.index.fold.fold_process import FoldJob, FoldReport
from rayhistory.index.manifest import Manifest
from rayhistory.index.service.fold_workers import FoldWorker, FoldWorkers, WorkerDied
from rayhistory.sessions import SessionRef

log = logging.getLogger(__name__)

ReportProgress = Callable[[FoldReport], None]


class FoldEngine(Protocol):
    async def fold(self, job: FoldJob, report_progress: ReportProgress) -> Manifest:
        """Fold one session. Raise StoreUnavailable if the store is down, and IndexFailed for anything else."""


class ProcessEngine:
    """Folds in child processes, so that their memory and crashes do not affect the server."""

    def __init__(self) -> None:
        self._workers = FoldWorkers()

    def keep_warm(self) -> None:
        """Always keep a process ready for the next fold."""
        self._workers.keep_warm()

    async def fold(self, job: FoldJob, report_progress: ReportProgress) -> Manifest:
        worker = await self._workers.acquire()
        try:
            manifest = await _run_job(worker, job, report_progress)
        except BaseException:
            await self._workers.discard(worker)
            raise
        self._workers.release(worker, job)
        return manifest

    async def close(self) -> None:
        await self._workers.close()


async def _run_job(worker: FoldWorker, job: FoldJob, report_progress: ReportProgress) -> Manifest:
    await worker.send(job)
    while True:
        try:
            report = await worker.report()
        except WorkerDied as died:
            raise _failure(job.ref, str(died)) from None
        report_progress(report)
        if report.outage:
            raise StoreUnavailable(report.outage)
        if report.manifest:
            return report.manifest


def _failure(ref: SessionRef, stderr: str) -> IndexFailed:
    log.error("index process ended with an error", extra={"session": ref.path, "output": stderr[-4000:]})
    last = (stderr.strip().splitlines() or ["no output"])[-1]
    return IndexFailed(f"indexing {ref.path} failed: {last[:500]}")
