"""Tables on their way from the store to the local disk: little of them is in memory at once."""

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from folding import RECORDED, REF, as_lines, fold_session, put
from rayhistory.errors import DamagedIndex
from rayhistory.index import cache
from rayhistory.index.cache import IndexCache
from rayhistory.index.manifest import Manifest
from rayhistory.layout import Layout
from rayhistory.storage.local import LocalStore

BLOCK = 10_000
SIZES = [95_000, 30_000, 10_000, 1, 123_456, *[20_001] * 20]


class Watched(LocalStore):
    """Knows how much it was asked for at once, and in how many pieces."""

    under_way = most = pieces = at_once = 0

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.under_way += end - start
        self.pieces += 1
        self.most, self.at_once = max(self.most, self.under_way), max(self.at_once, self.pieces)
        try:
            await asyncio.sleep(0.001)
            return await super().get_range(key, start, end)
        finally:
            self.under_way -= end - start
            self.pieces -= 1


@pytest.fixture
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    """An index whose table of tasks has many parts, in a store that is the directory."""
    monkeypatch.setattr(cache, "_BLOCK", BLOCK)
    monkeypatch.setattr(cache, "_MOST_UNDER_WAY", 4 * BLOCK)
    put(tmp_path, 0, as_lines(RECORDED))
    manifest = fold_session(tmp_path)
    for part, size in enumerate(SIZES):
        part_of(tmp_path, manifest, part).write_bytes(os.urandom(size))
    return msgspec.structs.replace(manifest, files={**manifest.files, "tasks": SIZES})


def part_of(directory: Path, manifest: Manifest, part: int) -> Path:
    return directory / Layout().index_file_key(REF, manifest.build, "tasks", part)


def fetched(store: LocalStore, directory: Path, manifest: Manifest) -> list[bytes]:
    copies = IndexCache(directory / "copies", store, Layout(), budget=10**9)
    return [path.read_bytes() for path in asyncio.run(copies.table(REF, manifest, "tasks"))]


def test_a_large_table_is_fetched_with_little_of_it_in_memory(tmp_path: Path, manifest: Manifest) -> None:
    store = Watched(tmp_path)
    whole = [part_of(tmp_path, manifest, part).read_bytes() for part in range(len(SIZES))]
    assert fetched(store, tmp_path, manifest) == whole
    assert store.most <= 4 * BLOCK + store.at_once
    assert store.at_once > 1
    assert not [path for path in (tmp_path / "copies").rglob(".*") if path.is_file()]


def test_what_is_being_written_is_not_what_makes_room(tmp_path: Path, manifest: Manifest) -> None:
    """A budget for less than one table: older parts go, and no fetch fails because of another."""
    copies = IndexCache(tmp_path / "copies", Watched(tmp_path), Layout(), budget=50_000)
    assert len(asyncio.run(copies.table(REF, manifest, "tasks"))) == len(SIZES)
    assert sum(path.stat().st_size for path in (tmp_path / "copies").rglob("*.parquet")) <= 50_000 + 4 * max(SIZES)


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("part", [0, 2])
def test_a_part_of_another_size_is_damage_and_leaves_nothing(
    tmp_path: Path, manifest: Manifest, part: int, change: int
) -> None:
    part_of(tmp_path, manifest, part).write_bytes(b"x" * (SIZES[part] + change))
    with pytest.raises(DamagedIndex, match=r"table tasks of generation 1 .* is damaged"):
        fetched(LocalStore(tmp_path), tmp_path, manifest)
    assert not [path for path in (tmp_path / "copies").rglob(f"*tasks.{part}.*") if path.is_file()]
