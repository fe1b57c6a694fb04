"""A check finds every kind of damage and everything that nobody reads, and nothing in a sound store."""

import asyncio
import os
import time
from pathlib import Path

import msgspec
import pytest

from rayhistory.archive.store_check import StoreCheck, StoreProblem
from rayhistory.index.manifest import Manifest
from rayhistory.index.products.product_manifest import ProductFile, ProductManifest
from rayhistory.sessions import Layout, SessionRef, Tombstone
from rayhistory.storage.local import LocalStore
from support.folding import RECORDED, REF, as_lines, files_of, fold_session, put

LAYOUT = Layout()
CONTENT = b"counted"
SHA256 = "9e2bf9d66a5c7bf7fc0ad8bcda01a3f6d10b5c46fc7ad49d2b9f9a0a0d7e1f00"

pytestmark = pytest.mark.slow


@pytest.fixture
def tables(tmp_path: Path) -> Manifest:
    put(tmp_path, 0, as_lines(RECORDED))
    return fold_session(tmp_path)


def check(directory: Path, *, checksums: bool = False, later_s: float = 0.0) -> list[StoreProblem]:
    async def work() -> list[StoreProblem]:
        found = StoreCheck(LocalStore(directory), LAYOUT, time.time() + later_s, checksums=checksums)
        return [*await found.session(REF), *[each async for each in found.orphans([REF])]]

    return asyncio.run(work())


def put_product(directory: Path, *generations: int, sha256: str = "") -> None:
    for number in generations:
        build = f"{number}-b"
        files = {"names.json": ProductFile(build, len(CONTENT), sha256)}
        manifest = ProductManifest("counted", 1, number, build, files, 1, "c", None, {}, 0.1)
        _write(directory, LAYOUT.product_file_key(REF, "counted", build, "names.json"), CONTENT)
        _write(directory, LAYOUT.product_manifest_key(REF, "counted", number), msgspec.json.encode(manifest))


def _write(directory: Path, key: str, data: bytes) -> Path:
    path = directory / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def codes(problems: list[StoreProblem]) -> list[tuple[str, str]]:
    return [(problem.what, problem.code) for problem in problems]


def test_sound_store_has_no_problems(tmp_path: Path, tables: Manifest) -> None:
    put_product(tmp_path, 1, 2)
    assert check(tmp_path, checksums=True, later_s=10**6) == []


def test_missing_and_short_files_are_damage(tmp_path: Path, tables: Manifest) -> None:
    put_product(tmp_path, 1)
    files_of(tmp_path, tables, "actors")[0].unlink()
    files_of(tmp_path, tables, "jobs")[0].write_bytes(b"short")
    (tmp_path / LAYOUT.product_file_key(REF, "counted", "1-b", "names.json")).unlink()
    problems = check(tmp_path)
    assert sorted(codes(problems)) == [
        ("counted", "missing_file"), ("tables", "missing_file"), ("tables", "wrong_size"),
    ]  # fmt: skip
    assert all(problem.is_damage for problem in problems)


def test_changed_bytes_are_found_by_their_checksum(tmp_path: Path, tables: Manifest) -> None:
    put_product(tmp_path, 1, sha256=SHA256)
    assert check(tmp_path) == []
    assert codes(check(tmp_path, checksums=True)) == [("counted", "wrong_checksum")]


def test_files_of_interrupted_builds_are_unused_after_an_hour(tmp_path: Path, tables: Manifest) -> None:
    put_product(tmp_path, 1)
    _write(tmp_path, LAYOUT.index_file_key(REF, "9-killed", "tasks", 0), b"x" * 100)
    _write(tmp_path, LAYOUT.product_file_key(REF, "counted", "9-killed", "names.json"), b"x" * 10)
    assert check(tmp_path) == []  # a build may be under way
    problems = check(tmp_path, later_s=3700)
    assert codes(problems) == [("tables", "unused"), ("counted", "unused")]
    assert [problem.size for problem in problems] == [100, 10]
    assert not any(problem.is_damage for problem in problems)


def test_builds_of_old_generations_are_unused(tmp_path: Path, tables: Manifest) -> None:
    put_product(tmp_path, 1, 2, 3)
    (problem,) = check(tmp_path, later_s=3700)
    assert {key.rpartition("counted/")[2] for key in problem.keys} == {"1-b/names.json", "manifest-1.product.json"}


def test_expired_lease_is_unused(tmp_path: Path, tables: Manifest) -> None:
    _write(tmp_path, LAYOUT.lease_key(REF), b"token")
    (problem,) = check(tmp_path, later_s=3700)
    assert problem.keys == (LAYOUT.lease_key(REF),)


def test_product_of_a_later_release_is_left_alone(tmp_path: Path, tables: Manifest) -> None:
    _write(tmp_path, LAYOUT.product_manifest_key(REF, "counted", 5), b'{"format": "of tomorrow"}')
    _write(tmp_path, LAYOUT.product_file_key(REF, "counted", "4-b", "new"), b"x")
    assert check(tmp_path, later_s=10**6) == []


def test_index_without_a_session_and_unfinished_removal_are_found(tmp_path: Path, tables: Manifest) -> None:
    gone = SessionRef("default", "gone", REF.session)
    removed = SessionRef("default", "removed", REF.session)
    for ref in (gone, removed):
        _write(tmp_path, LAYOUT.index_file_key(ref, "1-b", "tasks", 0), b"xx")
    _write(tmp_path, LAYOUT.tombstone_key(removed), msgspec.json.encode(Tombstone(1)))
    problems = check(tmp_path, later_s=3700)
    assert [(problem.ref.cluster, problem.code) for problem in problems] == [
        ("removed", "unfinished_removal"), ("gone", "no_session"),
    ]  # fmt: skip
    old = time.time() - 10
    os.utime(tmp_path / LAYOUT.index_file_key(gone, "1-b", "tasks", 0), (old, old))
    assert [problem.code for problem in check(tmp_path)] == ["unfinished_removal"]  # it may be written right now
