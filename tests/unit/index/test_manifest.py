"""Publication of index generations."""

import asyncio
from pathlib import Path

import msgspec

from rayhistory.index.manifest import publish_manifest, read_latest_manifest
from rayhistory.sessions import Layout
from rayhistory.storage.local import LocalStore
from support.folding import REF, put_folded


def test_generation_that_another_schema_took_is_published_under_the_next_number(tmp_path: Path) -> None:
    """Two releases fold the session at once."""
    manifest = msgspec.structs.replace(put_folded(tmp_path), generation=2)
    taken = tmp_path / Layout().manifest_key(REF, 2)
    taken.write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, schema=999)))

    async def publish() -> list[int]:
        store = LocalStore(tmp_path)
        published = await publish_manifest(store, Layout(), REF, manifest)
        latest = await read_latest_manifest(store, Layout(), REF)
        assert latest is not None
        return [published.generation, latest.generation]

    assert asyncio.run(publish()) == [3, 3]
