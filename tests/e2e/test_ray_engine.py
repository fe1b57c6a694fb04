"""Folds on a real Ray cluster: a session as one task, and a large session in partitions."""

import asyncio
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest

from rayhistory.index.manifest import Manifest, read_latest_manifest
from rayhistory.sessions import Layout
from rayhistory.storage import open_store
from support.folding import RECORDED, REF, as_lines, fold_session, put, settings_for, tables
from support.ray_without_collector import ray_without_collector

RAYHISTORY = Path(sys.executable).parent / "rayhistory"


def store_session(directory: Path) -> Path:
    """Store a session as KubeRay's collector does; without records it counts as ended."""
    for number in range(14):
        put(directory, number, as_lines(RECORDED))
    marker = directory / Layout().metadata_key(REF)
    marker.parent.mkdir(parents=True)
    marker.touch()
    return directory


def test_tables_equal_those_of_a_local_fold(tmp_path: Path) -> None:
    whole, parts = asyncio.run(index_on_ray(store_session(tmp_path / "whole"), store_session(tmp_path / "parts")))
    local = store_session(tmp_path / "local")
    expected = tables(local, fold_session(local, whole.closing))
    assert (len(whole.files_of("tasks")), len(parts.files_of("tasks")) > 1) == (1, True)
    assert tables(tmp_path / "whole", whole) == expected
    assert tables(tmp_path / "parts", parts) == expected


async def index_on_ray(whole: Path, parts: Path) -> tuple[Manifest, Manifest]:
    with tempfile.TemporaryDirectory(prefix="rh-") as directory:
        async with ray_without_collector(Path(directory)) as ray:
            return await index(whole, "1Gi", ray.address), await index(parts, "256Ki", ray.address)


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
