"""Engines that build products: in child processes of this machine, or on a Ray cluster (`ray_engine.py`).

A process serves one build after the other: starting Python takes longer than most builds. It is used again only after a
success that took little memory, and it ends soon after the last build.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Protocol

import msgspec

from rayhistory.errors import IndexDamaged, ProductFailed, StoreUnavailable
from rayhistory.index.child_process import child_process
from rayhistory.index.products.product_manifest import ProductManifest
from rayhistory.index.products.product_process import ProductJob, ProductReport

log = logging.getLogger(__name__)

_MODULE = "rayhistory.index.products.product_process"
_IDLE_S = 10.0
_MAX_JOBS = 100

OnReport = Callable[[ProductReport], None]


class ProductEngine(Protocol):
    async def run(self, job: ProductJob, on_report: OnReport) -> ProductManifest:
        """Build a product.

        Raise StoreUnavailable if the store is down, IndexDamaged if the tables or the previous product cannot be read,
        and ProductFailed for anything else.
        """


class _ProductProcess:
    """One child process. It ends after a failure."""

    def __init__(self, stack: AsyncExitStack, process: asyncio.subprocess.Process) -> None:
        assert process.stdin and process.stdout and process.stderr  # noqa: S101
        self._stack = stack
        self._stdin, self._stdout = process.stdin, process.stdout
        self._stderr = asyncio.create_task(process.stderr.read())
        self._process = process
        self.jobs = 0

    @classmethod
    async def start(cls) -> "_ProductProcess":
        stack = AsyncExitStack()
        return cls(stack, await stack.enter_async_context(child_process(_MODULE)))

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def run(self, job: ProductJob, on_report: OnReport) -> ProductReport:
        """Run a job and return its last report. The report has no manifest if the process ended early."""
        self.jobs += 1
        self._stdin.write(msgspec.json.encode(job) + b"\n")
        with contextlib.suppress(ConnectionError):  # the process ended, which its output shows
            await self._stdin.drain()
        report = ProductReport()
        async for line in self._stdout:
            report = msgspec.json.decode(line, type=ProductReport)
            on_report(report)
            if report.is_last:
                break
        return report

    async def error_output(self) -> str:
        """Return the error output of a process that has ended."""
        return (await self._stderr).decode(errors="replace")

    async def close(self) -> None:
        await self._stack.aclose()
        self._stderr.cancel()


class ProductProcesses:
    """The processes that build products for a server; idle ones end after some seconds."""

    def __init__(self) -> None:
        self._idle: list[_ProductProcess] = []
        self._closing: set[asyncio.Task[None]] = set()

    async def run(self, job: ProductJob, on_report: OnReport) -> ProductManifest:
        """Build a product in an idle process, or in a new one."""
        process = await self._acquire()
        try:
            report = await process.run(job, on_report)
            manifest = await _result(job, report, process)
        except BaseException:
            await process.close()
            raise
        await self._release(process, reusable=report.reusable)
        return manifest

    async def close(self) -> None:
        """End all processes. Builds must have ended or been cancelled before."""
        for process in self._idle:
            await process.close()
        self._idle.clear()
        await asyncio.gather(*self._closing)

    async def _acquire(self) -> _ProductProcess:
        while self._idle:
            process = self._idle.pop()
            if process.is_alive:
                return process
            await process.close()
        return await _ProductProcess.start()

    async def _release(self, process: _ProductProcess, *, reusable: bool) -> None:
        if not reusable or process.jobs >= _MAX_JOBS:
            await process.close()
            return
        self._idle.append(process)
        asyncio.get_running_loop().call_later(_IDLE_S, self._expire, process, process.jobs)

    def _expire(self, process: _ProductProcess, jobs: int) -> None:
        """End a process that has been idle since its last job."""
        if process in self._idle and process.jobs == jobs:
            self._idle.remove(process)
            task = asyncio.create_task(process.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


async def _result(job: ProductJob, report: ProductReport, process: _ProductProcess) -> ProductManifest:
    if report.outage:
        raise StoreUnavailable(report.outage)
    if report.damage:
        raise IndexDamaged(report.damage)
    if report.manifest is None:
        raise _failure(job, await process.error_output())
    return report.manifest


def _failure(job: ProductJob, stderr: str) -> ProductFailed:
    module = job.product.rpartition(":")[0]
    log.error("product process failed", extra={"session": job.ref.path, "product": module, "output": stderr[-4000:]})
    last = (stderr.strip().splitlines() or ["no output"])[-1]
    return ProductFailed(f"{module} of {job.ref.path} failed: {last[:500]}")
