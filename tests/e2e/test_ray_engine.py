"""The same fold on a real Ray cluster: whole sessions as tasks of it, and one that is large in parts."""

import asyncio
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest

from folding import RECORDED, REF, as_lines, fold_session, put, settings_for, tables
from plainray import plain_ray
from rayhistory.index.manifest import Manifest, read_latest
from rayhistory.layout import Layout
from rayhistory.storage import open_store

RAYHISTORY = Path(sys.executable).parent / "rayhistory"


def session(directory: Path) -> Path:
    """A session that a collector of KubeRay kept: it counts as ended."""
    for number in range(14):
        put(directory, number, as_lines(RECORDED))
    marker = directory / Layout().metadata_key(REF)
    marker.parent.mkdir(parents=True)
    marker.touch()
    return directory


def test_the_tables_are_the_same_row_for_row(tmp_path: Path) -> None:
    whole, parts = asyncio.run(on_ray(session(tmp_path / "whole"), session(tmp_path / "parts")))
    here = session(tmp_path / "here")
    expected = tables(here, fold_session(here, whole.closing))
    assert (len(whole.files["tasks"]), len(parts.files["tasks"]) > 1) == (1, True)
    assert tables(tmp_path / "whole", whole) == expected
    assert tables(tmp_path / "parts", parts) == expected


async def on_ray(whole: Path, parts: Path) -> tuple[Manifest, Manifest]:
    with tempfile.TemporaryDirectory(prefix="rh-") as directory:
        async with plain_ray(Path(directory)) as ray:
            return await indexed(whole, "1Gi", ray.address), await indexed(parts, "256Ki", ray.address)


async def indexed(directory: Path, memory: str, address: str) -> Manifest:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {
        "LOCAL_STORAGE_DIR": str(directory),
        "RAYHISTORY_FOLD_MEMORY": memory,
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
    manifest = await read_latest(open_store(settings_for(directory)), Layout(), REF)
    assert manifest
    return manifest


def test_a_cluster_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    session(tmp_path)
    with pytest.raises(AssertionError, match=re.escape("rayhistory: no Ray cluster at 127.0.0.1:1")):
        asyncio.run(indexed(tmp_path, "1Gi", "127.0.0.1:1"))
