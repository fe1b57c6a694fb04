"""Manifests of products are untrusted, and are never overwritten."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rayhistory.index.products.product_manifest import (
    ProductFile,
    ProductManifest,
    parse_product_manifest,
    publish_product,
    read_latest_product,
    unused_product_keys,
)
from rayhistory.sessions import Layout
from rayhistory.storage.local import LocalStore
from support.folding import REF

LAYOUT = Layout()


def manifest(generation: int = 1, version: int = 1, **more: Any) -> ProductManifest:
    build = f"{generation}-b"
    values: dict[str, Any] = {
        "product": "counted", "version": version, "generation": generation, "build": build,
        "files": {"a": ProductFile(build, 1)}, "tables_generation": 1, "tables_covered": "c", "closing": None,
        "preview": {}, "seconds": 0.1,
    }  # fmt: skip
    return ProductManifest(**values | more)


@pytest.mark.parametrize(
    "change",
    [
        {"build": "../up"},
        {"files": {"../up": ProductFile("1-b", 1)}},
        {"files": {"a": ProductFile("..", 1)}},
        {"files": {"a": ProductFile("1-b", -1)}},
        {"preview": {"text": "x" * 20_000}},
        {"files": {str(number): ProductFile("1-b", 1) for number in range(3000)}},
    ],
)
def test_hostile_manifest_is_ignored(change: dict[str, Any]) -> None:
    assert parse_product_manifest(msgspec.json.encode(manifest())) == manifest()
    assert parse_product_manifest(msgspec.json.encode(manifest(**change))) is None


@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 100_000, b"\xff", b" " * (2 << 20)])
def test_malformed_manifest_is_ignored(data: bytes) -> None:
    assert parse_product_manifest(data) is None


def test_first_of_two_builds_of_a_generation_wins(tmp_path: Path) -> None:
    async def work() -> None:
        store = LocalStore(tmp_path)
        first, second = manifest(preview={"by": 1}), manifest(preview={"by": 2})
        assert await publish_product(store, LAYOUT, REF, first) == first
        assert await publish_product(store, LAYOUT, REF, second) == first

    asyncio.run(work())


def test_version_of_another_release_takes_another_generation(tmp_path: Path) -> None:
    async def work() -> None:
        store = LocalStore(tmp_path)
        await publish_product(store, LAYOUT, REF, manifest())
        newer = await publish_product(store, LAYOUT, REF, manifest(version=2))
        assert newer.generation == 2
        assert await read_latest_product(store, LAYOUT, REF, "counted", 1) == manifest()
        assert await read_latest_product(store, LAYOUT, REF, "counted", 2) == newer
        assert await read_latest_product(store, LAYOUT, REF, "counted", 3) is None
        assert await read_latest_product(store, LAYOUT, REF, "counted", None) == newer

    asyncio.run(work())


def test_manifest_under_the_name_of_another_product_is_ignored(tmp_path: Path) -> None:
    async def work() -> None:
        store = LocalStore(tmp_path)
        key = LAYOUT.product_manifest_key(REF, "other", 1)
        await store.put(key, msgspec.json.encode(manifest()))
        assert await read_latest_product(store, LAYOUT, REF, "other", 1) is None

    asyncio.run(work())


def test_nothing_is_unused_while_a_manifest_cannot_be_read(tmp_path: Path) -> None:
    """A later release may refer to files in another way."""

    async def work() -> None:
        store = LocalStore(tmp_path)
        for generation in range(1, 5):
            await store.put(LAYOUT.product_file_key(REF, "counted", f"{generation}-b", "a"), b"1")
            await publish_product(store, LAYOUT, REF, manifest(generation))
        unused = await unused_product_keys(store, LAYOUT, REF, "counted", 3)
        assert [key.rpartition("counted/")[2] for key in unused] == [
            "1-b/a", "2-b/a", "manifest-1.product.json", "manifest-2.product.json",
        ]  # fmt: skip
        await store.put(LAYOUT.product_manifest_key(REF, "counted", 9), b'{"format": "of tomorrow"}')
        assert await unused_product_keys(store, LAYOUT, REF, "counted", 3) == []

    asyncio.run(work())
