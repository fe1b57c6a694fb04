"""Combine old packs of a node into larger objects, while its collector and readers keep working.

A busy node writes up to 17,000 packs a day. The newest packs stay, because collectors and readers find them by listing.
Older packs are found only by name, and names stay valid (see `compacted_packs`). Bytes are copied unchanged and not
decoded.

A new object also takes in older objects that are not larger than itself, up to 64 MiB. So the number of objects depends
on the size of the logs, and a byte is copied only a few times.
"""

import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import IO, NamedTuple, Protocol

import msgspec

from rayhistory.errors import ObjectNotFound
from rayhistory.packs.compacted_packs import (
    MAX_COMPACTED_BYTES,
    MAX_COMPACTED_PACKS,
    OBJECT_SUFFIX,
    RECORD_SUFFIX,
    CompactedName,
    CompactionRecord,
    MovedPack,
    parse_compacted_name,
    parse_compaction_record,
)
from rayhistory.packs.directory_reader import ListedFolder, ListedObject, PackStore
from rayhistory.packs.pack_format import is_pack, parse_pack_name
from rayhistory.packs.pack_reader import PackReader

KEPT_PACKS = 128
"""Number of packs before the newest checkpoint that are not compacted. Readers use them if that checkpoint is damaged.
"""
_MIN_ORPHAN_AGE_S = 3600.0
_CHUNK_BYTES = 4 << 20
_MAX_RECORD_BYTES = 4 << 20

DeleteMany = Callable[[list[str]], Awaitable[None]]


class _Sized(ListedObject, Protocol):
    @property
    def size(self) -> int: ...


class CompactionStore(PackStore, Protocol):
    """The store operations that compaction needs."""

    def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[_Sized]: ...

    async def list_folder(self, prefix: str) -> ListedFolder: ...

    async def put(self, key: str, data: bytes | Path) -> None: ...

    async def create(self, key: str, data: bytes) -> None: ...

    async def head(self, key: str) -> _Sized: ...


class StoredPack(NamedTuple):
    """A pack that is not compacted yet and so is one object."""

    name: str
    number: int
    size: int
    modified_ms: int


class CompactedObject(NamedTuple):
    """An object with packs, and its record. The entries of the record are not kept in memory: there may be millions."""

    name: CompactedName
    packs: int
    """Number of packs in the object."""


class CompactionPlan(NamedTuple):
    objects: list[CompactedObject]
    """Smaller objects that are copied into the new one, oldest first."""
    packs: list[StoredPack]


class CompactionResult(msgspec.Struct):
    packs: int = 0
    objects: int = 0
    """Number of objects that compaction wrote."""
    copied_bytes: int = 0


def plan_compaction(packs: list[StoredPack], objects: list[CompactedObject], min_packs: int) -> CompactionPlan | None:
    """Choose the oldest packs, and small objects before them. Return None if there are too few packs.

    Packs that are as large as an object are left alone.
    """
    packs = [pack for pack in packs if pack.size <= MAX_COMPACTED_BYTES]
    if len(packs) < max(1, min_packs):
        return None
    chosen: list[StoredPack] = []
    size = 0
    for pack in packs[:MAX_COMPACTED_PACKS]:
        if chosen and size + pack.size > MAX_COMPACTED_BYTES:
            break
        chosen.append(pack)
        size += pack.size
    absorbed: list[CompactedObject] = []
    count = len(chosen)
    before = [each for each in objects if each.name.last < chosen[0].number]
    for each in sorted(before, key=lambda each: each.name.last, reverse=True):
        fits = size + each.name.size <= MAX_COMPACTED_BYTES and count + each.packs <= MAX_COMPACTED_PACKS
        if each.name.size > size or not fits:
            break
        absorbed.insert(0, each)
        size += each.name.size
        count += each.packs
    return CompactionPlan(absorbed, chosen)


async def compact_node(
    store: CompactionStore, prefix: str, delete_many: DeleteMany, *, min_packs: int, scratch: Path | None = None
) -> CompactionResult:
    """Compact the packs below a node's prefix until fewer than `min_packs` remain."""
    return await _NodeCompaction(store, prefix, delete_many, scratch).run(min_packs)


class _NodeCompaction:
    def __init__(self, store: CompactionStore, prefix: str, delete_many: DeleteMany, scratch: Path | None) -> None:
        self._store = store
        self._prefix = prefix
        self._delete_many = delete_many
        self._scratch = scratch
        self._packs: list[StoredPack] = []
        self._objects: list[CompactedObject] = []

    async def run(self, min_packs: int) -> CompactionResult:
        result = CompactionResult()
        reader = PackReader(self._store, self._prefix)
        await reader.refresh()
        root = parse_pack_name(reader.directory.root.pack) if reader.directory.root else None
        if root is None:
            return result
        await self._load(root.number - KEPT_PACKS)
        while plan := plan_compaction(self._packs, self._objects, min_packs):
            made = await self._write(plan)
            if made is None:  # another process compacts the same packs
                return result
            moved = {pack.name for pack in plan.packs}
            self._packs = [pack for pack in self._packs if pack.name not in moved]
            self._objects = [each for each in self._objects if each not in plan.objects] + [made]
            result.packs += len(moved)
            result.objects += 1
            result.copied_bytes += made.name.size
        return result

    async def _load(self, before: int) -> None:
        """List the packs and compacted objects, and finish an interrupted compaction."""
        stored: dict[str, StoredPack] = {}
        sizes: dict[CompactedName, _Sized] = {}
        records: set[CompactedName] = set()
        newest = 0.0
        async for info in self._store.list_all(self._prefix):
            name = info.key.removeprefix(self._prefix + "/")
            newest = max(newest, info.modified)
            pack = parse_pack_name(name) if is_pack(name) else None
            if pack and pack.number < before and info.size == pack.size:
                stored[name] = StoredPack(name, pack.number, pack.size, int(info.modified * 1000))
            elif compacted := parse_compacted_name(info.key, OBJECT_SUFFIX):
                sizes[compacted] = info
            elif record := parse_compacted_name(info.key, RECORD_SUFFIX):
                records.add(record)
        moved: set[str] = set()
        for record_name in records:
            if record_name in sizes and sizes[record_name].size == record_name.size:
                packs = await self._read_record(record_name)
                moved.update(stored.keys() & {each.name for each in packs})
                self._objects.append(CompactedObject(record_name, len(packs)))
        orphans = [
            info.key
            for object_name, info in sizes.items()
            if object_name not in records and newest - info.modified > _MIN_ORPHAN_AGE_S
        ]
        await self._delete_leftovers(stored, moved, orphans)
        self._packs = sorted(stored.values(), key=lambda pack: pack.number)

    async def _read_record(self, name: CompactedName) -> list[MovedPack]:
        data = await self._store.get_range(f"{self._prefix}/{name}{RECORD_SUFFIX}", 0, _MAX_RECORD_BYTES + 1)
        return parse_compaction_record(data, name)

    async def _delete_leftovers(self, stored: dict[str, StoredPack], moved: set[str], orphans: list[str]) -> None:
        """Delete packs that are already in an object, and objects whose record was never written."""
        for name in moved:
            del stored[name]
        keys = [*(f"{self._prefix}/{name}" for name in sorted(moved)), *orphans]
        if keys:
            await self._delete_many(keys)

    async def _write(self, plan: CompactionPlan) -> CompactedObject | None:
        """Write the object, then its record, then delete what they replace. Return None if a source has disappeared."""
        with tempfile.NamedTemporaryFile(dir=self._scratch) as file:
            moved = await self._concatenate(plan, file)
            if moved is None:
                return None
            file.flush()
            numbers = [pack.number for pack in plan.packs] + [
                number for each in plan.objects for number in (each.name.first, each.name.last)
            ]
            name = CompactedName(min(numbers), max(numbers), file.tell(), secrets.token_hex(4))
            key = f"{self._prefix}/{name}"
            await self._store.put(key + OBJECT_SUFFIX, Path(file.name))
        if (await self._store.head(key + OBJECT_SUFFIX)).size != name.size:
            return None
        await self._store.create(key + RECORD_SUFFIX, msgspec.json.encode(CompactionRecord(moved)))
        await self._delete_many([f"{self._prefix}/{pack.name}" for pack in plan.packs])
        replaced = [f"{self._prefix}/{each.name}" for each in plan.objects]
        if replaced:
            # A record without its object would lead readers to nothing, so that records go first.
            await self._delete_many([key + RECORD_SUFFIX for key in replaced])
            await self._delete_many([key + OBJECT_SUFFIX for key in replaced])
        return CompactedObject(name, len(moved))

    async def _concatenate(self, plan: CompactionPlan, file: IO[bytes]) -> list[MovedPack] | None:
        moved: list[MovedPack] = []
        for each in plan.objects:
            base = file.tell()
            try:
                packs = await self._read_record(each.name)
            except ObjectNotFound:
                return None
            if not await self._copy(f"{each.name}{OBJECT_SUFFIX}", each.name.size, file):
                return None
            moved += [msgspec.structs.replace(pack, offset=base + pack.offset) for pack in packs]
        for pack in plan.packs:
            moved.append(MovedPack(pack.name, file.tell(), pack.modified_ms))
            if not await self._copy(pack.name, pack.size, file):
                return None
        return moved

    async def _copy(self, name: str, size: int, file: IO[bytes]) -> bool:
        try:
            for start in range(0, size, _CHUNK_BYTES):
                chunk = await self._store.get_range(f"{self._prefix}/{name}", start, min(start + _CHUNK_BYTES, size))
                file.write(chunk)
                if len(chunk) != min(_CHUNK_BYTES, size - start):
                    return False
        except ObjectNotFound:
            return False
        return True
