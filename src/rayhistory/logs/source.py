"""Sources of log files, with one interface: list files, read a byte range.

Logs are stored as one object per file, as KubeRay stores them, and as packs, which running and vanished sessions have.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from rayhistory.errors import LogNotFound, ObjectNotFound
from rayhistory.logs.pack_times import PackTimes
from rayhistory.packs.pack_reader import PackCache, PackReader
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.kuberay_keys import is_node_folder
from rayhistory.storage import Store

LISTING_TTL_S = 5.0
"""Maximum age of a listing."""
OLD_LOGS_DIR = "old/"
"""The directory into which Ray moves the log files of dead processes."""
_BACKWARD_READ_BYTES = 256 << 10
T = TypeVar("T")


class StoredLogFile(msgspec.Struct, frozen=True):
    path: str
    """Path of the file, relative to the node's logs directory."""
    size: int


class FlushPoint(msgspec.Struct, frozen=True):
    """A point in time at which the store had at least `end` bytes of the file."""

    end: int
    ms: int
    """The time, by the store's clock."""


class FileHistory(msgspec.Struct, frozen=True):
    """The times at which the bytes of a file were stored."""

    points: list[FlushPoint]
    """Flush points in ascending order. The last end is the file's size."""
    identity: str
    """Files with the same identity differ only in length, even if a rotation renames them."""


Content = bytes | bytearray


class LogSource(Protocol):
    async def nodes(self) -> list[str]:
        """Return the ids of nodes that have logs."""

    async def files(self, node: str) -> list[StoredLogFile]: ...

    async def read(self, node: str, path: str, start: int, end: int) -> bytes:
        """Return bytes [start, end) of a file that `files` lists."""

    async def read_large(self, node: str, path: str, start: int, end: int, buffer: bytearray) -> Content:
        """Read like `read`. The result may be `buffer`, which saves an allocation.

        After a cancellation the buffer may still be written to, and must not be reused.
        """

    async def histories(self, node: str) -> dict[str, FileHistory]:
        """Return the history of each file: the times at which its bytes were stored."""


class ObjectLogs:
    """Logs stored as one object per file, below the folder of their node."""

    def __init__(self, store: Store, nodes_prefix: str, logs_prefix: Callable[[str], str]) -> None:
        self._store = store
        self._nodes_prefix = nodes_prefix
        self._logs_prefix = logs_prefix
        self._listings: dict[str, tuple[float, list[StoredLogFile]]] = {}
        self._stored_ms: dict[str, dict[str, int]] = {}

    async def nodes(self) -> list[str]:
        listing = await self._store.list_folder(self._nodes_prefix)
        return [folder for folder in listing.folders if is_node_folder(folder)]

    async def files(self, node: str) -> list[StoredLogFile]:
        cached = self._listings.get(node)
        if cached and time.monotonic() - cached[0] < LISTING_TTL_S:
            return cached[1]
        prefix = self._logs_prefix(node)
        objects = [info async for info in self._store.list_all(prefix) if not info.key.endswith("/")]
        files = [StoredLogFile(info.key[len(prefix) + 1 :], info.size) for info in objects]
        self._listings[node] = (time.monotonic(), files)
        self._stored_ms[node] = {info.key[len(prefix) + 1 :]: int(info.modified * 1000) for info in objects}
        return files

    async def read(self, node: str, path: str, start: int, end: int) -> bytes:
        try:
            return await self._store.get_range(f"{self._logs_prefix(node)}/{path}", start, end)
        except ObjectNotFound:
            raise LogNotFound(f"A file is not found at: {path}") from None

    async def read_large(self, node: str, path: str, start: int, end: int, buffer: bytearray) -> Content:
        return await self.read(node, path, start, end)

    async def histories(self, node: str) -> dict[str, FileHistory]:
        found = {}
        for file in await self.files(node):
            ms = self._stored_ms[node][file.path]
            found[file.path] = FileHistory([FlushPoint(file.size, ms)], f"object {ms} {file.size}")
        return found


def object_logs(store: Store, layout: Layout, ref: SessionRef) -> list[ObjectLogs]:
    """Return the logs below KubeRay's current prefix, and below the prefix of its releases before v1.7."""
    present = [
        ObjectLogs(store, layout.history_prefix(named), partial(layout.logs_prefix, named))
        for named in ref.owner_variants
    ]
    return [*present, ObjectLogs(store, layout.v1_6_logs_prefix(ref), partial(layout.v1_6_logs_prefix, ref))]


class PackLogs:
    """Logs stored as packs: one object per upload and node, with the new bytes of all files."""

    def __init__(self, store: Store, layout: Layout, ref: SessionRef, memory: PackCache | None = None) -> None:
        self._store = store
        self._layout = layout
        self._ref = ref
        self._memory = memory or PackCache()
        self._pack_times: dict[str, PackTimes] = {}

    async def nodes(self) -> list[str]:
        listing = await self._store.list_folder(self._layout.packs_prefix(self._ref))
        return [folder for folder in listing.folders if is_node_folder(folder)]

    async def files(self, node: str) -> list[StoredLogFile]:
        reader = await self._reader(node)
        return [StoredLogFile(name, stream.size) for name, stream in sorted(reader.files.items())]

    async def read(self, node: str, path: str, start: int, end: int) -> bytes:
        return await (await self._reader(node)).read(path, start, end)

    async def read_large(self, node: str, path: str, start: int, end: int, buffer: bytearray) -> Content:
        await (await self._reader(node)).read_to_buffer(path, start, end, buffer)
        return buffer

    async def histories(self, node: str) -> dict[str, FileHistory]:
        """Return the times of the packs that have the files' bytes.

        Small chunks are written again to later packs, so they may look newer than they are.
        """
        reader = await self._reader(node)
        parts = await reader.packs_of_files()
        times = await self._times(node).of({pack for packs in parts.values() for _, pack in packs})
        return {
            name: FileHistory(_flush_points(parts[name], times, stream.size), f"stream {stream.id}")
            for name, stream in reader.files.items()
        }

    def _times(self, node: str) -> PackTimes:
        if node not in self._pack_times:
            self._pack_times[node] = PackTimes(self._store, self._layout.node_packs_prefix(self._ref, node))
        return self._pack_times[node]

    async def _reader(self, node: str) -> PackReader:
        if not is_node_folder(node):
            raise LogNotFound(f"no node has the id {node!r}")
        reader = self._memory.reader(self._store, self._layout.node_packs_prefix(self._ref, node))
        if time.monotonic() - reader.refreshed_at >= LISTING_TTL_S:
            await reader.refresh()
        return reader


def _flush_points(parts: list[tuple[int, str]], times: Mapping[str, int], size: int) -> list[FlushPoint]:
    points, latest = [], 0
    for end, pack in parts:
        latest = max(latest, times.get(pack, 0))
        points.append(FlushPoint(min(end, size), latest))
    if not points or points[-1].end < size:
        points.append(FlushPoint(size, latest))
    return points


class CombinedLogs:
    """The files of several sources. If several have a file, the longest is used; of equally long ones, the first."""

    def __init__(self, *ways: LogSource) -> None:
        self._ways = ways

    async def nodes(self) -> list[str]:
        found = await asyncio.gather(*(way.nodes() for way in self._ways))
        return sorted({node for nodes in found for node in nodes})

    async def files(self, node: str) -> list[StoredLogFile]:
        return [file for file, _ in (await self._chosen(node)).values()]

    async def read(self, node: str, path: str, start: int, end: int) -> bytes:
        file, way = find_by_path(await self._chosen(node), path)
        return await way.read(node, file.path, start, end)

    async def read_large(self, node: str, path: str, start: int, end: int, buffer: bytearray) -> Content:
        file, way = find_by_path(await self._chosen(node), path)
        return await way.read_large(node, file.path, start, end, buffer)

    async def histories(self, node: str) -> dict[str, FileHistory]:
        chosen = await self._chosen(node)
        ways = {id(way): way for _, way in chosen.values()}
        found = {number: await way.histories(node) for number, way in ways.items()}
        return {path: found[id(way)][path] for path, (_, way) in chosen.items() if path in found[id(way)]}

    async def _chosen(self, node: str) -> dict[str, tuple[StoredLogFile, LogSource]]:
        chosen: dict[str, tuple[StoredLogFile, LogSource]] = {}
        for way, files in zip(self._ways, await asyncio.gather(*(way.files(node) for way in self._ways)), strict=True):
            for file in files:
                if file.path not in chosen or file.size > chosen[file.path][0].size:
                    chosen[file.path] = (file, way)
        return dict(sorted(chosen.items()))


def find_by_path(files: Mapping[str, T], path: str) -> T:
    """Return the file with this path, or the file that Ray moved from there to its directory of old logs."""
    for name in (path, OLD_LOGS_DIR + path):
        if name in files:
            return files[name]
    raise LogNotFound(f"A file is not found at: {path}")


async def find_file(logs: LogSource, node: str, path: str) -> StoredLogFile:
    """Return a listed file. Only listed files can be read, so no path outside of the log directory is possible."""
    return find_by_path({file.path: file for file in await logs.files(node)}, path)


async def start_of_last_lines(logs: LogSource, node: str, path: str, end: int, lines: int, *, start: int = 0) -> int:
    """Return the position where the last `lines` lines of [start, end) start. Chunks are read backwards."""
    if lines <= 0:
        return end
    position, found = end, 0
    while position > start:
        begin = max(start, position - _BACKWARD_READ_BYTES)
        chunk = await logs.read(node, path, begin, position)
        at = len(chunk)
        if position == end and chunk.endswith(b"\n"):
            at -= 1  # the final newline ends the last line and starts no other
        while (at := chunk.rfind(b"\n", 0, at)) >= 0:
            found += 1
            if found == lines:
                return begin + at + 1
        position = begin
    return start
