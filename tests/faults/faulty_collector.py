"""The real collector, in a process whose store and disk fail as the environment says. Nothing else is changed.

FAULT_SEED   makes the same failures again
FAULT_STORE  share of writes to the store that fail, each in one of the ways of a real store
FAULT_DISK   share of disk syncs of the spool that fail with ENOSPC or EIO
FAULT_AWAY   a file: while it is there, the store is away, and each attempt to reach it is a line in that file
FAULT_SPEED  how many times faster time passes for everything that asks for it or waits
FAULT_CLOCK  a file that says by how many seconds the clock is wrong
FAULT_WEATHER  a file that says what the store does now: a share of its calls, and in which ways they fail
FAULT_HURT   a file that gets a line for each call that failed so
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

import warped_time  # noqa: F401 - before anybody asks what time it is

from rayhistory.collector.main import main
from rayhistory.errors import BucketNotFound, StoreDenied, StoreUnavailable, Throttled
from rayhistory.storage.local import LocalStore
from rayhistory.storage.seam import Listing, ObjectInfo

dice = random.Random(os.environ.get("FAULT_SEED", "0"))
store_share = float(os.environ.get("FAULT_STORE", "0"))
disk_share = float(os.environ.get("FAULT_DISK", "0"))
away = os.environ.get("FAULT_AWAY", "")
weather = os.environ.get("FAULT_WEATHER", "")
hurt = os.environ.get("FAULT_HURT", "")
real_put, real_create, real_sync = LocalStore.put, LocalStore.create, os.fdatasync
real_list_all, real_list_folder = LocalStore.list_all, LocalStore.list_folder
STALE = 3.0  # seconds by which a listing may be late


def weather_now() -> str:
    """In which way this call fails; empty when it does not."""
    if not weather:
        return ""
    now = json.loads(Path(weather).read_text())
    if dice.random() >= now["share"]:
        return ""
    way = str(dice.choice(now["ways"]))
    with Path(hurt).open("a") as told:
        told.write(f"{way}\n")
    return way


async def misfortune(write: Any, way: str = "") -> None:
    """One of the ways in which a store does not do what it was asked, or does it and does not say so."""
    way = way or dice.choice(
        ["down", "5xx", "denied", "throttled", "slow", "timeout", "acked but timed out", "reset late"]
    )
    if way in {"down", "reset midway"}:
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
    if (way := weather_now()) and way != "stale listings":
        await misfortune(lambda: real_put(self, key, data), way)
    elif dice.random() < store_share:
        await misfortune(lambda: real_put(self, key, data))
    else:
        await real_put(self, key, data)


async def create(self: LocalStore, key: str, data: bytes) -> None:
    reach(key)
    if dice.random() < store_share / 2:
        raise StoreUnavailable("connection refused")
    if (way := weather_now()) and way != "stale listings":
        await misfortune(lambda: real_create(self, key, data), way)
    else:
        await real_create(self, key, data)


async def nothing() -> None:
    pass


def is_old(info: ObjectInfo) -> bool:
    """By the kernel's clock: ours may be wrong."""
    return info.modified < Path(hurt).stat().st_mtime - STALE


async def list_all(self: LocalStore, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
    way = weather_now()
    if way and way != "stale listings":
        await misfortune(nothing, way)
    async for info in real_list_all(self, prefix, start_after):
        if way != "stale listings" or is_old(info):
            yield info


async def list_folder(self: LocalStore, prefix: str) -> Listing:
    way = weather_now()
    if way and way != "stale listings":
        await misfortune(nothing, way)
    listing = await real_list_folder(self, prefix)
    if way != "stale listings":
        return listing
    return Listing(listing.folders, [info for info in listing.objects if is_old(info)])


def fdatasync(descriptor: int) -> None:
    if dice.random() < disk_share:
        raise OSError(dice.choice([errno.ENOSPC, errno.EIO]), "a bad disk")
    real_sync(descriptor)


LocalStore.put = put  # type: ignore[method-assign]
LocalStore.create = create  # type: ignore[method-assign]
LocalStore.list_all = list_all  # type: ignore[method-assign]
LocalStore.list_folder = list_folder  # type: ignore[method-assign]
os.fdatasync = fdatasync

if __name__ == "__main__":
    main()
