"""Downloads of tables use bounded memory, and eviction spares partial files."""

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from rayhistory.errors import IndexDamaged
from rayhistory.index import table_cache
from rayhistory.index.index_objects import file_sha256
from rayhistory.index.manifest import Manifest, StoredFile
from rayhistory.index.table_cache import TableCache
from rayhistory.sessions import Layout
from rayhistory.storage.local import LocalStore
from support.folding import RECORDED, REF, as_lines, fold_session, put

CHUNK = 10_000
SIZES = [95_000, 30_000, 10_000, 1, 123_456, *[20_001] * 20]


class MeasuringStore(LocalStore):
    """Measures the bytes and requests in flight."""

    bytes_in_flight = max_bytes = requests_in_flight = max_requests = 0

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.bytes_in_flight += end - start
        self.requests_in_flight += 1
        self.max_bytes = max(self.max_bytes, self.bytes_in_flight)
        self.max_requests = max(self.max_requests, self.requests_in_flight)
        try:
            await asyncio.sleep(0.001)
            return await super().get_range(key, start, end)
        finally:
            self.bytes_in_flight -= end - start
            self.requests_in_flight -= 1


@pytest.fixture
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    """An index with a tasks table of many parts, in a directory store."""
    monkeypatch.setattr(table_cache, "_CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(table_cache, "_MAX_BYTES_IN_FLIGHT", 4 * CHUNK)
    put(tmp_path, 0, as_lines(RECORDED))
    manifest = fold_session(tmp_path)
    for part, size in enumerate(SIZES):
        part_path(tmp_path, manifest, part).write_bytes(os.urandom(size))
    files = [StoredFile(manifest.build, number, size) for number, size in enumerate(SIZES)]
    return msgspec.structs.replace(manifest, files={**manifest.files, "tasks": files})


def part_path(directory: Path, manifest: Manifest, part: int) -> Path:
    return directory / Layout().index_file_key(REF, manifest.build, "tasks", part)


def fetch(store: LocalStore, directory: Path, manifest: Manifest) -> list[bytes]:
    copies = TableCache(directory / "copies", store, Layout(), budget=10**9)
    return [path.read_bytes() for path in asyncio.run(copies.table(REF, manifest, "tasks"))]


@pytest.mark.slow
def test_large_table_is_fetched_with_bounded_memory(tmp_path: Path, manifest: Manifest) -> None:
    store = MeasuringStore(tmp_path)
    whole = [part_path(tmp_path, manifest, part).read_bytes() for part in range(len(SIZES))]
    assert fetch(store, tmp_path, manifest) == whole
    assert store.max_bytes <= 4 * CHUNK + store.max_requests
    assert store.max_requests > 1
    assert not [path for path in (tmp_path / "copies").rglob(".*") if path.is_file()]


@pytest.mark.slow
def test_eviction_spares_files_that_are_being_written(tmp_path: Path, manifest: Manifest) -> None:
    """The budget is smaller than the table: older parts are evicted, and no download fails."""
    copies = TableCache(tmp_path / "copies", MeasuringStore(tmp_path), Layout(), budget=50_000)
    assert len(asyncio.run(copies.table(REF, manifest, "tasks"))) == len(SIZES)
    assert sum(path.stat().st_size for path in (tmp_path / "copies").rglob("*.parquet")) <= 50_000 + 4 * max(SIZES)


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("part", [0, 2])
def test_part_of_wrong_size_is_damaged_and_not_cached(
    tmp_path: Path, manifest: Manifest, part: int, change: int
) -> None:
    part_path(tmp_path, manifest, part).write_bytes(b"x" * (SIZES[part] + change))
    with pytest.raises(IndexDamaged, match=r"index table tasks of .* is damaged \(generation 1\)"):
        fetch(LocalStore(tmp_path), tmp_path, manifest)
    assert not [path for path in (tmp_path / "copies").rglob(f"*tasks.{part}.*") if path.is_file()]


def test_copy_with_another_byte_is_damaged_and_not_cached(tmp_path: Path, manifest: Manifest) -> None:
    """Parquet readers do not notice every changed byte: the checksum does."""
    path = part_path(tmp_path, manifest, 0)
    files = [msgspec.structs.replace(manifest.files["tasks"][0], digest=file_sha256(path))]
    manifest = msgspec.structs.replace(manifest, files={**manifest.files, "tasks": files})
    assert fetch(LocalStore(tmp_path), tmp_path / "whole", manifest) == [path.read_bytes()]
    path.write_bytes(flip_byte(path.read_bytes(), CHUNK + 1))
    with pytest.raises(IndexDamaged, match=r"index table tasks of .* is damaged \(generation 1\)"):
        fetch(LocalStore(tmp_path), tmp_path, manifest)
    assert not [path for path in (tmp_path / "copies").rglob("*tasks*") if path.is_file()]


def flip_byte(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
