"""Engines run a fold: in a process on this machine, or on a Ray cluster (`ray_engine.py`)."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from rayhistory.errors import IndexFailed, StoreUnavailable
from rayhistory.index.child_process import child_process
from rayhistory.index.fold.process import FoldJob, FoldReport
from rayhistory.index.manifest import Manifest
from rayhistory.sessions import SessionRef

log = logging.getLogger(__name__)

ReportProgress = Callable[[FoldReport], None]


class FoldEngine(Protocol):
    async def fold(self, job: FoldJob, report_progress: ReportProgress) -> Manifest:
        """Fold one session. Raise StoreUnavailable if the store is down, and IndexFailed for anything else."""


class ProcessEngine:
    """Folds in a child process, so that its memory and crashes do not affect the server."""

    async def fold(self, job: FoldJob, report_progress: ReportProgress) -> Manifest:
        async with child_process("rayhistory.index.fold.process") as process:
            assert process.stdin and process.stdout and process.stderr  # noqa: S101
            stderr = asyncio.create_task(process.stderr.read())
            process.stdin.write(msgspec.json.encode(job))
            process.stdin.close()
            report = FoldReport()
            async for line in process.stdout:
                report = msgspec.json.decode(line, type=FoldReport)
                report_progress(report)
            await process.wait()
            if report.outage:
                raise StoreUnavailable(report.outage)
            if report.manifest is None:
                raise _failure(job.ref, (await stderr).decode(errors="replace"))
            return report.manifest


def _failure(ref: SessionRef, stderr: str) -> IndexFailed:
    log.error("index process failed", extra={"session": ref.path, "output": stderr[-4000:]})
    last = (stderr.strip().splitlines() or ["no output"])[-1]
    return IndexFailed(f"fold of {ref.path} failed: {last[:500]}")
