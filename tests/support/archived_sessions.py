"""Sessions in real stores, and `rayhistory` as a process, for tests of the archive commands."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from rayhistory.sessions import EndRecord, Layout, SessionRef, StartRecord
from rayhistory.settings import CLI, Settings, resolve
from rayhistory.storage import Store
from rayhistory.storage.local import LocalStore
from rayhistory.storage.s3 import open_s3
from support.store_servers import seaweed as weed

T = TypeVar("T")
NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"
OLD = "session_2025-01-02_03-04-05_000006_1"
_REMOVED_VARIABLE_PREFIXES = ("RAYHISTORY_", "STORAGE_", "LOCAL_STORAGE_", "S3", "AWS_", "PYTHONPATH")


class StoreLocation:
    """A store, as a URL and environment variables for programs, and opened for tests."""

    def __init__(self, url: str, root: str = "", **environment: str) -> None:
        self.url = url
        self.environment = environment
        self.layout = Layout(root)

    def settings(self) -> Settings:
        return resolve(CLI, {"setting_store": self.url}, {})[0]

    def open(self) -> Store:
        if self.url.startswith("file://"):
            return LocalStore(Path(self.url.removeprefix("file://")))
        return open_s3(self.settings(), writable=True, environ=self.environment)

    def run(self, work: Callable[[Store], Awaitable[T]]) -> T:
        async def with_store() -> T:
            store = self.open()
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(with_store())

    def put(self, objects: dict[str, bytes]) -> None:
        async def work(store: Store) -> None:
            await asyncio.gather(*(store.put(key, data) for key, data in objects.items()))

        self.run(work)
        if not self.url.startswith("file:"):
            time.sleep(1.01 - time.time() % 1)  # times of objects are whole seconds: let these be over

    def objects(self) -> dict[str, bytes]:
        async def work(store: Store) -> dict[str, bytes]:
            return {info.key: await store.get(info.key) async for info in store.list_all(self.layout.root)}

        return self.run(work)


def directory(path: Path) -> StoreLocation:
    path.mkdir(parents=True, exist_ok=True)
    return StoreLocation(path.as_uri())


def bucket(endpoint: str, root: str = "") -> StoreLocation:
    name = f"archive-{secrets.token_hex(6)}"
    return StoreLocation(
        f"s3://{name}/{root}".rstrip("/"), root,
        S3_ENDPOINT=endpoint, S3_REGION="us-east-1", AWS_ACCESS_KEY_ID=weed.KEY, AWS_SECRET_ACCESS_KEY=weed.SECRET,
    )  # fmt: skip


def rayhistory(
    location: StoreLocation, *argv: str, at_start: Path | None = None, **environment: str
) -> "subprocess.CompletedProcess[str]":
    process = start_rayhistory(location, *argv, at_start=at_start, **environment)
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def start_rayhistory(
    location: StoreLocation, *argv: str, at_start: Path | None = None, **environment: str
) -> "subprocess.Popen[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_REMOVED_VARIABLE_PREFIXES)}
    clean |= location.environment | environment
    if at_start:
        clean |= {
            "PYTHONPATH": str(at_start),
            "TMPDIR": str(at_start),
        }  # a killed process leaves its temporary files there
    command: list[str | Path] = [
        Path(sys.executable).with_name("rayhistory"),
        argv[0],
        "--store",
        location.url,
        *argv[1:],
    ]
    return subprocess.Popen(command, env=clean, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


_KILL = """
import os, signal
from rayhistory.storage.cloud import CloudStore
from rayhistory.storage.local import LocalStore

remaining = {calls}
def killing(work, after):
    async def call(self, *arguments):
        global remaining
        remaining -= 1
        if remaining == 0 and after:
            await work(self, *arguments)
        if remaining <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return await work(self, *arguments)
    return call

def killing_within(delete_many, after):
    # each key counts, and those before the last one are deleted
    async def call(self, keys):
        global remaining
        if remaining <= len(keys):
            await delete_many(self, keys[: remaining if after else remaining - 1] or keys[:1])
            os.kill(os.getpid(), signal.SIGKILL)
        remaining -= len(keys)
        return await delete_many(self, keys)
    return call

for kind in (CloudStore, LocalStore):
    for name in ("put", "create", "delete"):
        setattr(kind, name, killing(getattr(kind, name), {after}))
    kind.delete_many = killing_within(kind.delete_many, {after})
"""


def killed_at(directory: Path, calls: int) -> Path:
    """Return a PYTHONPATH directory whose sitecustomize kills the process before or after its n-th write to a store."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "sitecustomize.py").write_text(_KILL.format(calls=calls, after=calls % 2 == 0))
    return directory


def was_killed(done: "subprocess.CompletedProcess[str]") -> bool:
    return done.returncode == -signal.SIGKILL


def session_objects(
    layout: Layout, ref: SessionRef, *, ended_ms: int | None = 1_735_800_000_000, ours: bool = True
) -> dict[str, bytes]:
    """Return objects under every prefix of a session: all of KubeRay's layouts and, with `ours`, our own trees.

    The start and end records contain the time when a store first had them, as records of a copy do.
    """
    history = layout.history_prefix(ref)
    keys = {
        layout.metadata_key(ref): b"",
        layout.v1_6_metadata_key(ref): b"",
        f"{history}/{NODE}/node_events/{NODE}-2025-01-02-03-1735787045000000000.jsonl": b"{}\n",
        f"{history}/{NODE}/job_events/01000000/{NODE}-2025-01-02-03-1735787045000000000.jsonl": b"{}\n",
        f"{history}/{NODE}/logs/raylet.out": b"hello\n" * 1000,
        f"{history}/fetched_endpoints/restful__timezone": b"{}",
        layout.legacy_events_key(ref): b"{}\n",
        f"{layout.v1_6_history_prefix(ref)}/logs/{NODE}/raylet.err": b"old\n",
        f"{layout.v1_6_history_prefix(ref)}/job_events/AQAAAA==/{NODE}-2025-01-02-03": b"[]",
    }
    if not ours:
        return keys
    start = StartRecord(ref.namespace, ref.cluster, ref.session, 1_735_787_045_000, stored_ms=1_735_787_045_000)
    keys |= {
        layout.start_key(ref): msgspec.json.encode(start),
        layout.alive_key(ref): b"",
        layout.node_seal_key(ref, NODE): b'{"node_id": "x", "sealed_ms": 1}',
        f"{layout.dashboard_responses_prefix(ref)}/{NODE}-2025-01-02-03-1735787045000000000.jsonl": b"{}\n",
        f"{layout.own_tree_prefix('future-tree', ref)}/x": b"later",
        f"{layout.index_prefix(ref)}/1-abcd/tasks.parquet": b"no index",
        layout.product_file_key(ref, "later", "1-abcd", "file"): b"of a product",
        layout.product_manifest_key(ref, "later", 1): b"{}",
    }
    if ended_ms is not None:
        keys[layout.end_key(ref)] = msgspec.json.encode(EndRecord(ended_ms, stored_ms=ended_ms))
    return keys
