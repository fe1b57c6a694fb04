"""Folds on a real Ray cluster: a session as one task, and a large session in partitions."""

import asyncio
import contextlib
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

from rayhistory.index.manifest import Manifest, read_latest_manifest
from rayhistory.index.products.product import load_product
from rayhistory.server.products import PRODUCTS
from rayhistory.sessions import Layout
from rayhistory.storage import open_store
from support.folding import RECORDED, REF, as_lines, fold_session, put, settings_for, tables
from support.ray_without_collector import ray_without_collector

STORES = ("whole", "parts", "killed")
PRODUCT_NAMES = {load_product(path).name for path in PRODUCTS}
RAYHISTORY = Path(sys.executable).parent / "rayhistory"


def store_session(directory: Path) -> Path:
    """Store a session as KubeRay's collector does; without records it counts as ended."""
    for number in range(14):
        put(directory, number, as_lines(RECORDED))
    marker = directory / Layout().metadata_key(REF)
    marker.parent.mkdir(parents=True)
    marker.touch()
    return directory


def test_tables_equal_those_of_a_local_fold_also_if_workers_are_killed(tmp_path: Path) -> None:
    whole, parts, killed = asyncio.run(index_on_ray(*(store_session(tmp_path / name) for name in STORES)))
    local = store_session(tmp_path / "local")
    expected = tables(local, fold_session(local, whole.closing))
    assert (len(whole.files_of("tasks")), len(parts.files_of("tasks")) > 1) == (1, True)
    for name, manifest in zip(STORES, (whole, parts, killed), strict=True):
        assert tables(tmp_path / name, manifest) == expected, name
        assert built_products(tmp_path / name) == PRODUCT_NAMES, name


async def index_on_ray(whole: Path, parts: Path, killed: Path) -> tuple[Manifest, Manifest, Manifest]:
    with tempfile.TemporaryDirectory(prefix="rh-") as directory:
        async with ray_without_collector(Path(directory)) as ray:
            manifests = [await index(whole, "1Gi", ray.address), await index(parts, "256Ki", ray.address)]
            tasks = ("ray::_fold_session", "ray::_build_product")
            killers = asyncio.gather(*(asyncio.to_thread(kill_worker, directory, title) for title in tasks))
            manifests.append(await index(killed, "1Gi", ray.address))
            await killers
            return manifests[0], manifests[1], manifests[2]


def kill_worker(ray_directory: str, title: str) -> None:
    """Wait for a worker of this Ray that runs a task, and kill it."""
    deadline = time.monotonic() + 120
    while (pid := find_worker(ray_directory, title)) is None:
        assert time.monotonic() < deadline, f"no {title} was running"
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)


def find_worker(ray_directory: str, title: str) -> int | None:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_task = (process / "cmdline").read_bytes().startswith(title.encode())
            if is_task and ray_directory.encode() in (process / "environ").read_bytes():
                return int(process.name)
    return None


def built_products(store: Path) -> set[str]:
    """Return the names of the products that have a manifest in a store."""
    names = (load_product(path).name for path in PRODUCTS)
    return {name for name in names if any(store.rglob(f"{name}/manifest-*.product.json"))}


async def index(directory: Path, memory: str, address: str) -> Manifest:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {
        "LOCAL_STORAGE_DIR": str(directory),
        "RAYHISTORY_INDEX_MEMORY": memory,
        "RAYHISTORY_CACHE_DIR": str(directory / "cache"),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }
    process = await asyncio.create_subprocess_exec(
        RAYHISTORY, "index", "--engine", "ray", "--address", address,
        env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    assert "generation 1" in output.decode()
    manifest = await read_latest_manifest(open_store(settings_for(directory)), Layout(), REF)
    assert manifest
    return manifest


def test_unreachable_cluster_is_an_error_of_one_line(tmp_path: Path) -> None:
    store_session(tmp_path)
    with pytest.raises(AssertionError, match=re.escape("rayhistory: no Ray cluster at 127.0.0.1:1")):
        asyncio.run(index(tmp_path, "1Gi", "127.0.0.1:1"))
