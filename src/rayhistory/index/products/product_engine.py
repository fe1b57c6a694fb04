"""Run the build of a product in a child process."""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from rayhistory.errors import IndexDamaged, ProductFailed, StoreUnavailable
from rayhistory.index.child_process import child_process
from rayhistory.index.products.product_manifest import ProductManifest
from rayhistory.index.products.product_process import ProductJob, ProductReport

log = logging.getLogger(__name__)

_MODULE = "rayhistory.index.products.product_process"


async def run_product_process(job: ProductJob, on_report: Callable[[ProductReport], None]) -> ProductManifest:
    """Build a product.

    Raise StoreUnavailable if the store is down, IndexDamaged if the tables or the previous product cannot be read, and
    ProductFailed for anything else.
    """
    async with child_process(_MODULE) as process:
        assert process.stdin and process.stdout and process.stderr  # noqa: S101
        stderr = asyncio.create_task(process.stderr.read())
        process.stdin.write(msgspec.json.encode(job))
        process.stdin.close()
        report = ProductReport()
        async for line in process.stdout:
            report = msgspec.json.decode(line, type=ProductReport)
            on_report(report)
        await process.wait()
        if report.outage:
            raise StoreUnavailable(report.outage)
        if report.damage:
            raise IndexDamaged(report.damage)
        if report.manifest is None:
            raise _failure(job, (await stderr).decode(errors="replace"))
        return report.manifest


def _failure(job: ProductJob, stderr: str) -> ProductFailed:
    fields = {"session": job.ref.path, "product": job.product, "output": stderr[-4000:]}
    log.error("process that builds %s failed", job.product.rpartition(":")[0], extra=fields)
    last = (stderr.strip().splitlines() or ["no output"])[-1]
    return ProductFailed(f"{job.product.rpartition(':')[0]} of {job.ref.path} failed: {last[:500]}")
