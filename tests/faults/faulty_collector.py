"""The real collector, in a process whose store and disk fail as the environment says. Nothing else is changed.

FAULT_SEED   makes the same failures again
FAULT_STORE  share of writes to the store that fail, each in one of the ways of a real store
FAULT_DISK   share of disk syncs of the spool that fail with ENOSPC or EIO
FAULT_AWAY   a file: while it is there, the store is away, and each attempt to reach it is a line in that file
FAULT_SPEED  how many times faster time passes for everything that asks for it or waits
FAULT_CLOCK  a file that says by how many seconds the clock is wrong
"""

import asyncio
import errno
import os
import random
import time
from pathlib import Path
from typing import Any

import warped_time  # noqa: F401 - before anybody asks what time it is

from rayhistory.collector.main import main
from rayhistory.errors import BucketNotFound, StoreDenied, StoreUnavailable, Throttled
from rayhistory.storage.local import LocalStore

dice = random.Random(os.environ.get("FAULT_SEED", "0"))
store_share = float(os.environ.get("FAULT_STORE", "0"))
disk_share = float(os.environ.get("FAULT_DISK", "0"))
away = os.environ.get("FAULT_AWAY", "")
real_put, real_create, real_sync = LocalStore.put, LocalStore.create, os.fdatasync


async def misfortune(write: Any) -> None:
    """One of the ways in which a store does not do what it was asked, or does it and does not say so."""
    way = dice.choice(["down", "5xx", "denied", "throttled", "slow", "timeout", "acked but timed out", "reset late"])
    if way == "down":
        raise StoreUnavailable("connection refused")
    if way == "5xx":
        raise StoreUnavailable("500 Internal Server Error")
    if way == "denied":
        raise StoreDenied("403 Forbidden")
    if way == "throttled":
        raise Throttled("429 Too Many Requests", 0.2)
    if way == "timeout":
        await asyncio.sleep(dice.uniform(0.1, 1.0))
        raise StoreUnavailable("no answer in time")
    if way == "slow":
        await asyncio.sleep(dice.uniform(0.1, 1.5))
        await write()
        return
    await write()
    if way == "acked but timed out":
        await asyncio.sleep(dice.uniform(0.1, 0.5))
    raise StoreUnavailable(way)


def reach(key: str) -> None:
    """Raises while the store is away, each time in another way."""
    if not away or not Path(away).exists():
        return
    with Path(away).open("a") as attempts:
        attempts.write(f"{time.monotonic()} {key}\n")
    raise dice.choice(
        [
            StoreUnavailable("connection refused"),
            StoreUnavailable("503 Service Unavailable"),
            StoreUnavailable("no answer in time"),
            StoreUnavailable("connection reset"),
            Throttled("429 Too Many Requests", 7.0),
            StoreDenied("403 Forbidden"),
            BucketNotFound("the bucket does not exist"),
        ]
    )


async def put(self: LocalStore, key: str, data: bytes | Path) -> None:
    reach(key)
    if dice.random() < store_share:
        await misfortune(lambda: real_put(self, key, data))
    else:
        await real_put(self, key, data)


async def create(self: LocalStore, key: str, data: bytes) -> None:
    reach(key)
    if dice.random() < store_share / 2:
        raise StoreUnavailable("connection refused")
    await real_create(self, key, data)


def fdatasync(descriptor: int) -> None:
    if dice.random() < disk_share:
        raise OSError(dice.choice([errno.ENOSPC, errno.EIO]), "a bad disk")
    real_sync(descriptor)


LocalStore.put = put  # type: ignore[method-assign]
LocalStore.create = create  # type: ignore[method-assign]
os.fdatasync = fdatasync

if __name__ == "__main__":
    main()
