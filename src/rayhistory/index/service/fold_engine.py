"""Where a fold runs: in a process of its own on this machine, or elsewhere (`rayengine`)."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from rayhistory.errors import FoldFailed, StoreUnavailable
from rayhistory.index.child import child_process
from rayhistory.index.fold import FoldJob, FoldReport
from rayhistory.index.manifest import Manifest
from rayhistory.layout import SessionRef

log = logging.getLogger(__name__)

Say = Callable[[FoldReport], None]


class Engine(Protocol):
    async def fold(self, job: FoldJob, say: Say) -> Manifest:
        """Raises StoreUnavailable when the store could not be used, and FoldFailed for anything else."""


class OwnProcess:
    async def fold(self, job: FoldJob, say: Say) -> Manifest:
        async with child_process("rayhistory.index.fold") as process:
            assert process.stdin and process.stdout and process.stderr  # noqa: S101
            complaint = asyncio.create_task(process.stderr.read())
            process.stdin.write(msgspec.json.encode(job))
            process.stdin.close()
            report = FoldReport()
            async for line in process.stdout:
                report = msgspec.json.decode(line, type=FoldReport)
                say(report)
            await process.wait()
            if report.outage:
                raise StoreUnavailable(report.outage)
            if report.manifest is None:
                raise _failure(job.ref, (await complaint).decode(errors="replace"))
            return report.manifest


def _failure(ref: SessionRef, complaint: str) -> FoldFailed:
    log.error("fold process failed", extra={"session": ref.path, "output": complaint[-4000:]})
    last = (complaint.strip().splitlines() or ["no reason given"])[-1]
    return FoldFailed(f"{ref.path} could not be folded: {last[:500]}")
