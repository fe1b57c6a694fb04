"""Local copies of index tables. A generation never changes, so a copy of the right size is a good one."""

import asyncio
import secrets
from pathlib import Path

from rayhistory.errors import DamagedIndex, ObjectNotFound
from rayhistory.index.manifest import Manifest
from rayhistory.index.query import OpenIndex
from rayhistory.layout import Layout, SessionRef
from rayhistory.storage import Store


class IndexCache:
    def __init__(self, directory: Path, store: Store, layout: Layout) -> None:
        self._directory = directory
        self._store = store
        self._layout = layout

    async def open(self, ref: SessionRef, manifest: Manifest) -> OpenIndex:
        """The index of this generation, fetched if it is not here yet."""
        folder = self._directory / ref.namespace / ref.cluster / ref.session / manifest.build
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        paths = {name: folder / f"{name}.parquet" for name in manifest.files}
        missing = [name for name, size in manifest.files.items() if not _has_size(paths[name], size)]
        await asyncio.gather(*(self._fetch(ref, manifest, name, paths[name]) for name in missing))
        return OpenIndex(manifest, paths)

    async def _fetch(self, ref: SessionRef, manifest: Manifest, name: str, path: Path) -> None:
        try:
            data = await self._store.get(self._layout.index_file_key(ref, manifest.build, name))
        except ObjectNotFound:
            raise DamagedIndex(f"table {name} of generation {manifest.generation} of {ref.path} is gone") from None
        if len(data) != manifest.files[name]:
            raise DamagedIndex(f"table {name} of generation {manifest.generation} of {ref.path} is damaged")
        half = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        await asyncio.to_thread(half.write_bytes, data)
        half.replace(path)


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False
