"""The real collector in a process with a faulty store, disk or clock, configured by environment variables.

FAULT_SEED          seed of the random number generator
FAULT_STORE         share of store writes that fail, each with a random kind of fault
FAULT_DISK          share of the spool's fdatasync calls that fail with ENOSPC or EIO
FAULT_OUTAGE        a file: while it exists, the store is unreachable, and each attempt appends a line to it
FAULT_SPEED         factor by which time passes faster
FAULT_CLOCK         a file with the offset of the clock in seconds
FAULT_STORE_FAULTS  a file with the current store faults: the share of calls that fail, and the kinds of fault
FAULT_INJECTED      a file that gets a line for each fault from FAULT_STORE_FAULTS
"""

import asyncio
import errno
import json
import os
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import skewed_time  # type: ignore[import-not-found]  # noqa: F401 - beside this script; patches `time` early

from rayhistory.collector.main import main
from rayhistory.errors import BucketNotFound, StoreDenied, StoreThrottled, StoreUnavailable
from rayhistory.storage.local import LocalStore
from rayhistory.storage.store import Listing, ObjectInfo

rng = random.Random(os.environ.get("FAULT_SEED", "0"))
store_share = float(os.environ.get("FAULT_STORE", "0"))
disk_share = float(os.environ.get("FAULT_DISK", "0"))
outage = os.environ.get("FAULT_OUTAGE", "")
store_faults = os.environ.get("FAULT_STORE_FAULTS", "")
injected = os.environ.get("FAULT_INJECTED", "")
real_put, real_create, real_sync = LocalStore.put, LocalStore.create, os.fdatasync
real_list_all, real_list_folder = LocalStore.list_all, LocalStore.list_folder
STALE_S = 3.0
"""A stale listing lacks objects newer than this."""


def next_fault() -> str:
    """Draw the fault of this call; empty for none."""
    if not store_faults:
        return ""
    current = json.loads(Path(store_faults).read_text())
    if rng.random() >= current["share"]:
        return ""
    kind = str(rng.choice(current["kinds"]))
    with Path(injected).open("a") as log:
        log.write(f"{kind}\n")
    return kind


async def inject_fault(write: Any, kind: str = "") -> None:
    """Fail, delay, or write and report a failure; a random kind if none is given."""
    kind = kind or rng.choice(
        ["down", "5xx", "denied", "throttled", "slow", "timeout", "acked but timed out", "reset late"]
    )
    if kind in {"down", "reset midway"}:
        raise StoreUnavailable("connection refused")
    if kind == "5xx":
        raise StoreUnavailable("500 Internal Server Error")
    if kind == "denied":
        raise StoreDenied("403 Forbidden")
    if kind == "throttled":
        raise StoreThrottled("429 Too Many Requests", 0.2)
    if kind == "timeout":
        await asyncio.sleep(rng.uniform(0.1, 1.0))
        raise StoreUnavailable("no response in time")
    if kind == "slow":
        await asyncio.sleep(rng.uniform(0.1, 1.5))
        await write()
        return
    await write()
    if kind == "acked but timed out":
        await asyncio.sleep(rng.uniform(0.1, 0.5))
    raise StoreUnavailable(kind)


def fail_during_outage(key: str) -> None:
    """Raise a random store error while the outage lasts."""
    if not outage or not Path(outage).exists():
        return
    with Path(outage).open("a") as attempts:
        attempts.write(f"{time.monotonic()} {key}\n")
    raise rng.choice(
        [
            StoreUnavailable("connection refused"),
            StoreUnavailable("503 Service Unavailable"),
            StoreUnavailable("no response in time"),
            StoreUnavailable("connection reset"),
            StoreThrottled("429 Too Many Requests", 7.0),
            StoreDenied("403 Forbidden"),
            BucketNotFound("the bucket does not exist"),
        ]
    )


async def put(self: LocalStore, key: str, data: bytes | Path) -> None:
    fail_during_outage(key)
    if (kind := next_fault()) and kind != "stale listings":
        await inject_fault(lambda: real_put(self, key, data), kind)
    elif rng.random() < store_share:
        await inject_fault(lambda: real_put(self, key, data))
    else:
        await real_put(self, key, data)


async def create(self: LocalStore, key: str, data: bytes) -> None:
    fail_during_outage(key)
    if rng.random() < store_share / 2:
        raise StoreUnavailable("connection refused")
    if (kind := next_fault()) and kind != "stale listings":
        await inject_fault(lambda: real_create(self, key, data), kind)
    else:
        await real_create(self, key, data)


async def write_nothing() -> None:
    pass


def is_listed(info: ObjectInfo) -> bool:
    """Compare with a file's time: the clock of this process may be wrong."""
    return info.modified < Path(injected).stat().st_mtime - STALE_S


async def list_all(self: LocalStore, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
    kind = next_fault()
    if kind and kind != "stale listings":
        await inject_fault(write_nothing, kind)
    async for info in real_list_all(self, prefix, start_after):
        if kind != "stale listings" or is_listed(info):
            yield info


async def list_folder(self: LocalStore, prefix: str) -> Listing:
    kind = next_fault()
    if kind and kind != "stale listings":
        await inject_fault(write_nothing, kind)
    listing = await real_list_folder(self, prefix)
    if kind != "stale listings":
        return listing
    return Listing(listing.folders, [info for info in listing.objects if is_listed(info)])


def fdatasync(descriptor: int) -> None:
    if rng.random() < disk_share:
        raise OSError(rng.choice([errno.ENOSPC, errno.EIO]), "injected disk fault")
    real_sync(descriptor)


LocalStore.put = put  # type: ignore[method-assign]
LocalStore.create = create  # type: ignore[method-assign]
LocalStore.list_all = list_all  # type: ignore[method-assign]
LocalStore.list_folder = list_folder  # type: ignore[method-assign]
os.fdatasync = fdatasync  # type: ignore[assignment]

if __name__ == "__main__":
    main()
