"""Read a node's pack directory from the store: the newest tail, its root, and leaves and groups on demand."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol, TypeVar

from rayhistory.concurrency import concurrently
from rayhistory.errors import ObjectNotFound
from rayhistory.lru import LruCache
from rayhistory.packs.compacted_packs import PackObjects
from rayhistory.packs.pack_directory import PackDirectory, RangeSlice, cover
from rayhistory.packs.pack_format import (
    MAX_DIRECTORY_BYTES,
    DirectoryCoverage,
    DirectoryGroup,
    DirectoryLocation,
    DirectoryRoot,
    DirectoryTail,
    Frame,
    PackDamaged,
    PackName,
    Range,
    RangeColumns,
    decode_pack_end,
    directory_size,
    from_columns,
    is_pack,
    pack_name,
    parse_pack_name,
    unpack_directory,
)

_MAX_DAMAGE_RECORDS = 10_000
_MAX_ROOTS_BACK = 50
_MAX_CONCURRENT_LEAVES = 16
_READ_BEFORE_ROOT = 64 << 10
"""Bytes before a root that are read with it. A checkpoint's leaf is there, so that usually one request reads both."""
_LARGE_DIRECTORY = 100_000
"""A directory with at least this many bytes or ranges is decoded in a thread, because it takes milliseconds."""
_large_directories = ThreadPoolExecutor(1, thread_name_prefix="directories")
_FIRST_FOLDER = pack_name(0, 0, 0).partition("/")[0]
T = TypeVar("T")

RangesByStream = dict[int, list[Range]]
LeafCache = LruCache[tuple[str, DirectoryLocation], RangesByStream]
GroupCache = LruCache[tuple[str, DirectoryLocation], list[DirectoryCoverage]]


class ListedObject(Protocol):
    @property
    def key(self) -> str: ...

    @property
    def modified(self) -> float: ...


class ListedFolder(Protocol):
    @property
    def folders(self) -> Sequence[str]: ...

    @property
    def objects(self) -> Sequence[ListedObject]: ...


class PackStore(Protocol):
    """The three store operations that reading packs needs; this package does not depend on `rayhistory.storage`."""

    async def get_range(self, key: str, start: int, end: int) -> bytes: ...

    def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[ListedObject]: ...

    async def list_folder(self, prefix: str) -> ListedFolder: ...


class DirectoryReader:
    """The pack directory of the node whose packs are below `prefix`."""

    def __init__(
        self,
        store: PackStore,
        prefix: str,
        leaves: LeafCache,
        groups: GroupCache,
        objects: PackObjects | None = None,
    ) -> None:
        self.current = PackDirectory()
        self.newest_number = -1
        """The highest number of any pack, readable or not."""
        self.modified = 0.0
        """Time when the newest pack was written, by the store's clock."""
        self._store = store
        self._prefix = prefix
        self._objects = objects or PackObjects(store, prefix)
        self._leaves = leaves
        self._groups = groups
        self._damage: set[object] = set()

    @property
    def damaged(self) -> int:
        """Number of packs, directories and frames that could not be read."""
        return len(self._damage)

    def record_damage(self, part: object) -> None:
        if len(self._damage) < _MAX_DAMAGE_RECORDS:
            self._damage.add(part)

    async def refresh(self, newest: str = "") -> bool:
        """Read the directory of packs newer than the current one. Return True if there are any.

        Packs are listed only if the newest is not given or cannot be read.
        """
        directory = await self._read_directory(newest) if newest else None
        directory = directory or await self._open(None)
        if directory is None or directory is self.current:
            return False
        self.current = directory
        return True

    async def locate(self, stream: int, start: int, end: int) -> tuple[list[RangeSlice], list[tuple[int, int]]]:
        """Find bytes [start, end) of a stream. Return the slices that have them, and the ranges that were not found."""
        directory = self.current
        recent = [each for each in reversed(directory.ranges) if each.stream == stream]
        slices, missing = cover([(start, end)], recent)
        for group in (None, *reversed(directory.groups)):
            if group and not _overlaps(group, stream, missing):
                continue
            leaves = await self._read_group(group) if group else directory.leaves
            newest_first = [leaf for leaf in reversed(leaves) if _overlaps(leaf, stream, missing)]
            for first in range(0, len(newest_first), _MAX_CONCURRENT_LEAVES):
                batch = newest_first[first : first + _MAX_CONCURRENT_LEAVES]
                needed = [self._read_leaf(leaf) for leaf in batch if _overlaps(leaf, stream, missing)]
                for ranges in await concurrently(needed, len(needed)):
                    more, missing = cover(missing, reversed(ranges.get(stream, [])))
                    slices += more
        return slices, missing

    async def all_leaves(self) -> list[DirectoryCoverage]:
        """Return the coverage of each leaf, oldest first."""
        grouped = [leaf for group in self.current.groups for leaf in await self._read_group(group)]
        return [*grouped, *self.current.leaves]

    async def _open(self, before: str | None, roots_back: int = 0) -> PackDirectory | None:
        """Read the directory of the newest readable pack (older than `before`, if given); None without packs.

        If its root is damaged, use the directory of the packs before that root, and so on.
        """
        if roots_back > _MAX_ROOTS_BACK:
            return None
        async for name in self._newest_first(before):
            if before is None:
                self.newest_number = max(self.newest_number, checked_pack_name(name).number)
            if name == self.current.last:
                return self.current
            directory = await self._read_directory(name, roots_back)
            if directory is not None:
                return directory
        return None

    async def _read_directory(self, name: str, roots_back: int = 0) -> PackDirectory | None:
        """Read the directory as of one pack; None if the end of the pack cannot be read."""
        tail = await self._read_tail(name)
        if tail is None:
            return None
        location = _root_location(tail, name)
        root = await self._read_root(location)
        root = root or await self._open(min(location.pack, name), roots_back + 1) or PackDirectory()
        try:
            return await _run(len(tail.ranges.streams), lambda: root.with_tail(tail, name))
        except PackDamaged:
            self.record_damage(name)
            return None

    async def _newest_first(self, before: str | None) -> AsyncIterator[str]:
        """Yield names of packs, newest first.

        Most nodes have one folder, so it is listed without checking that it exists.
        """
        last = self.current.last
        ahead: list[ListedObject] | None = None
        if last or before is not None:
            folders = (await self._store.list_folder(self._prefix)).folders
        else:
            listing, ahead = await asyncio.gather(
                self._store.list_folder(self._prefix), self._list_folder_of_packs(_FIRST_FOLDER, "")
            )
            folders = listing.folders
        for folder in sorted((each for each in folders if each.isdigit()), reverse=True):
            if before is not None and folder > before.partition("/")[0]:
                continue
            after = f"{self._prefix}/{last}" if last.startswith(f"{folder}/") else ""
            listed = ahead if folder == _FIRST_FOLDER else None
            if listed is None:
                listed = await self._list_folder_of_packs(folder, "" if before is not None else after)
            found = {f"{folder}/{info.key.rpartition('/')[2]}": info for info in listed}
            for name in sorted(filter(is_pack, found), reverse=True):
                if before is None or name < before:
                    self.modified = max(self.modified, found[name].modified)
                    yield name
            if before is None and after:
                yield last

    async def _list_folder_of_packs(self, folder: str, after: str) -> list[ListedObject]:
        return [info async for info in self._store.list_all(f"{self._prefix}/{folder}", after)]

    async def _read_tail(self, name: str) -> DirectoryTail | None:
        try:
            pack = checked_pack_name(name)
            data = await self._objects.get_range(name, pack.size - pack.end_size, pack.size)
            return await _run(directory_size(data), lambda: decode_pack_end(data))
        except (PackDamaged, ObjectNotFound):
            self.record_damage(name)
            return None

    async def _read_root(self, location: DirectoryLocation) -> PackDirectory | None:
        if location == self.current.root:
            current = self.current
            return PackDirectory(
                root=location,
                streams=current.streams,
                links=current.links,
                leaves=current.leaves,
                groups=current.groups,
            )
        try:
            begin, data = await self._fetch(location, _READ_BEFORE_ROOT)
            packed = data[location.offset - begin :]
            root = await _run(directory_size(packed), lambda: unpack_directory(packed, DirectoryRoot))
            directory = PackDirectory.from_root(root, location)
        except (PackDamaged, ObjectNotFound):
            self.record_damage(location)
            return None
        for leaf in directory.leaves[-1:]:
            if leaf.location.pack == location.pack and begin <= leaf.location.offset:
                self._keep_leaf(leaf, data[leaf.location.offset - begin :][: leaf.location.size])
        return directory

    def _keep_leaf(self, leaf: DirectoryCoverage, data: bytes) -> None:
        """Cache the leaf that was fetched with its root. If it is damaged, it is read again when needed."""
        with suppress(PackDamaged):
            check_bounds(leaf.location, MAX_DIRECTORY_BYTES)
            ranges = from_columns(unpack_directory(data, RangeColumns), leaf.location.pack)
            self._leaves.put((self._prefix, leaf.location), _by_stream(ranges))

    async def _read_leaf(self, leaf: DirectoryCoverage) -> RangesByStream:
        """Read a leaf's ranges by stream, oldest first. If it is damaged, use the tail of the pack before it."""
        key = (self._prefix, leaf.location)
        if (cached := self._leaves.get(key)) is not None:
            return cached
        ranges: list[Range] = []
        columns = await self._read(leaf.location, RangeColumns)
        own_pack = leaf.location.pack
        if columns is None and leaf.previous and (tail := await self._read_tail(leaf.previous)):
            columns, own_pack = tail.ranges, leaf.previous
        if columns:
            try:
                ranges = await _run(len(columns.streams), lambda: from_columns(columns, own_pack))
            except PackDamaged:
                self.record_damage(leaf.location)
        by_stream = _by_stream(ranges)
        self._leaves.put(key, by_stream)
        return by_stream

    async def _read_group(self, group: DirectoryCoverage) -> list[DirectoryCoverage]:
        """Read a group's leaves. If it is damaged, use the root before it."""
        key = (self._prefix, group.location)
        if (cached := self._groups.get(key)) is not None:
            return cached
        leaves: list[DirectoryCoverage] = []
        record = await self._read(group.location, DirectoryGroup)
        if record and record.is_consistent:
            leaves = record.leaves
        elif group.previous and (tail := await self._read_tail(group.previous)):
            root = await self._read_root(_root_location(tail, group.previous))
            leaves = root.leaves if root else []
        self._groups.put(key, leaves)
        return leaves

    async def _read(self, location: DirectoryLocation, kind: type[T]) -> T | None:
        try:
            data = (await self._fetch(location))[1]
            return await _run(directory_size(data), lambda: unpack_directory(data, kind))
        except (PackDamaged, ObjectNotFound):
            self.record_damage(location)
            return None

    async def _fetch(self, location: DirectoryLocation, bytes_before: int = 0) -> tuple[int, bytes]:
        """Return the bytes of a location and some bytes before it, and the offset at which they start."""
        check_bounds(location, MAX_DIRECTORY_BYTES)
        begin = max(0, location.offset - bytes_before)
        return begin, await self._objects.get_range(location.pack, begin, location.offset + location.size)


async def _run(size: int, work: Callable[[], T]) -> T:
    """Decode a directory. Large ones are decoded in a thread, one after another, because each needs much memory."""
    if size < _LARGE_DIRECTORY:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_large_directories, work)


def _by_stream(ranges: list[Range]) -> RangesByStream:
    by_stream: RangesByStream = {}
    for each in ranges:
        by_stream.setdefault(each.stream, []).append(each)
    return by_stream


def checked_pack_name(name: str) -> PackName:
    pack = parse_pack_name(name)
    if pack is None or not is_pack(name):
        raise PackDamaged(f"invalid pack name {name[:200]!r}")
    return pack


def check_bounds(part: DirectoryLocation | Frame, max_bytes: int) -> None:
    """Raise PackDamaged unless a location is inside its pack. Only such locations are requested from the store."""
    end = part.offset + part.size
    if not (part.offset >= 0 and 0 <= part.size <= max_bytes and end <= checked_pack_name(part.pack).size):
        raise PackDamaged(f"range {part.offset} to {end} is outside of the pack {part.pack[:200]!r}")


def _root_location(tail: DirectoryTail, own_pack: str) -> DirectoryLocation:
    return DirectoryLocation(tail.root.pack or own_pack, tail.root.offset, tail.root.size)


def _overlaps(coverage: DirectoryCoverage, stream: int, missing: list[tuple[int, int]]) -> bool:
    if not missing:
        return False
    try:
        position = coverage.streams.index(stream)
    except ValueError:
        return False
    first, last = coverage.starts[position], coverage.ends[position]
    return any(start < last and first < end for start, end in missing)
