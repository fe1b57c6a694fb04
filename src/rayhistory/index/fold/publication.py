"""The last step of a fold: upload new files, publish the generation, and delete unused files.

Files that the previous generation already has are not uploaded again.
"""

import asyncio
import contextlib
import secrets
from pathlib import Path

import msgspec

from rayhistory.concurrency import concurrently
from rayhistory.errors import StoreError
from rayhistory.index.fold.table_files import row_count, shared_database
from rayhistory.index.index_objects import file_sha256
from rayhistory.index.manifest import Manifest, StoredFile, Tables, publish_manifest, used_generations
from rayhistory.sessions import Layout, SessionRef
from rayhistory.storage import Store

_MAX_CONCURRENT_UPLOADS = 64
"""Maximum number of concurrent uploads. They need little memory, because files are uploaded in pieces."""


class Publication:
    """The new files of one generation, in a separate folder."""

    def __init__(self, store: Store, layout: Layout, ref: SessionRef, generation: int) -> None:
        """`generation` is the next number after the newest generation when the fold began."""
        self.generation = generation
        self.folder = f"{generation}-{secrets.token_hex(4)}"
        self._store = store
        self._layout = layout
        self._ref = ref

    async def upload(self, tables: dict[str, list[Path]], previous: Tables | None = None) -> Tables:
        """Upload the files of tables, unless the previous generation has them."""
        names = [(name, number) for name, paths in tables.items() for number in range(len(paths))]
        uploads = (self._upload(name, number, tables[name][number], previous or {}) for name, number in names)
        stored: Tables = {name: [] for name in tables}
        for (name, _), file in zip(names, await concurrently(uploads, _MAX_CONCURRENT_UPLOADS), strict=True):
            stored[name].append(file)
        return stored

    async def put_covered(self, covered: object) -> None:
        """Store the list of covered sources."""
        await self._store.put(self._layout.covered_key(self._ref, self.folder), msgspec.json.encode(covered))

    async def publish(self, manifest: Manifest) -> Manifest:
        """Publish the generation. Return the manifest that is visible now."""
        folders = sorted({manifest.build, manifest.covered_in, *(file.folder for _, file in manifest.all_files())})
        manifest = msgspec.structs.replace(manifest, folders=folders)
        return await publish_manifest(self._store, self._layout, self._ref, manifest)

    async def _upload(self, name: str, number: int, path: Path, previous: Tables) -> StoredFile:
        file = await asyncio.to_thread(self._describe, name, number, path)
        before = previous.get(name, [])
        if number < len(before) and (before[number].size, before[number].digest) == (file.size, file.digest):
            return before[number]
        await self._store.put(self._layout.index_file_key(self._ref, self.folder, name, number), path)
        return file

    def _describe(self, name: str, number: int, path: Path) -> StoredFile:
        rows = 0
        if name == "tasks":
            with shared_database() as database:
                rows = row_count(database, path)
        return StoredFile(self.folder, number, path.stat().st_size, rows, file_sha256(path))


async def delete_old_generations(store: Store, layout: Layout, ref: SessionRef, generation: int) -> None:
    """Delete generations that no release reads any more. Errors are left to the next fold."""
    with contextlib.suppress(StoreError):
        generations, folders = await used_generations(store, layout, ref)
        prefix = layout.index_prefix(ref)
        async for info in store.list_all(prefix):
            number = layout.generation_of(ref, info.key)
            folder = info.key.removeprefix(prefix + "/").partition("/")[0]
            is_old = number is not None and number < generation - 1
            if is_old and number not in generations and folder not in folders:
                await store.delete(info.key)
