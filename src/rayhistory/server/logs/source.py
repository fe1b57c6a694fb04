"""The one seam through which logs are read: list, size, byte range.

Whole files, as KubeRay keeps them, are one way; packs, which a session that runs or that vanished has, are the other.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from rayhistory.errors import LogNotFound, ObjectNotFound
from rayhistory.layout import Layout, SessionRef
from rayhistory.layout.keys import is_node_folder
from rayhistory.layout.packread import Memory, PackReader
from rayhistory.storage import Store

FRESH = 5.0
"""How old a listing may be, in seconds."""
MOVED = "old/"
"""Where Ray moves the files of processes that are dead."""
_STEP = 256 << 10
T = TypeVar("T")


class LogFile(msgspec.Struct, frozen=True):
    path: str
    """Relative to the node's logs directory."""
    size: int


class Logs(Protocol):
    async def nodes(self) -> list[str]:
        """Node ids that have logs."""

    async def files(self, node: str) -> list[LogFile]: ...

    async def read(self, node: str, path: str, start: int, end: int) -> bytes:
        """Bytes [start, end) of a file that `files` lists."""


class PlainLogs:
    """Each log file is one object, below a folder of its node."""

    def __init__(self, store: Store, nodes_prefix: str, logs_prefix: Callable[[str], str]) -> None:
        self._store = store
        self._nodes_prefix = nodes_prefix
        self._logs_prefix = logs_prefix
        self._listed: dict[str, tuple[float, list[LogFile]]] = {}

    async def nodes(self) -> list[str]:
        listing = await self._store.list_folder(self._nodes_prefix)
        return [folder for folder in listing.folders if is_node_folder(folder)]

    async def files(self, node: str) -> list[LogFile]:
        known = self._listed.get(node)
        if known and time.monotonic() - known[0] < FRESH:
            return known[1]
        prefix = self._logs_prefix(node)
        files = [
            LogFile(info.key[len(prefix) + 1 :], info.size)
            async for info in self._store.list_all(prefix)
            if not info.key.endswith("/")
        ]
        self._listed[node] = (time.monotonic(), files)
        return files

    async def read(self, node: str, path: str, start: int, end: int) -> bytes:
        try:
            return await self._store.get_range(f"{self._logs_prefix(node)}/{path}", start, end)
        except ObjectNotFound:
            raise LogNotFound(f"A file is not found at: {path}") from None


def plain_logs(store: Store, layout: Layout, ref: SessionRef) -> list[PlainLogs]:
    """In KubeRay's current place, and in that of its releases before v1.7."""
    present = [
        PlainLogs(store, layout.history_prefix(named), partial(layout.logs_prefix, named)) for named in ref.spellings
    ]
    return [*present, PlainLogs(store, layout.old_logs_prefix(ref), partial(layout.old_logs_prefix, ref))]


class PackLogs:
    """What was appended to all files of a node is in one object per flush."""

    def __init__(self, store: Store, layout: Layout, ref: SessionRef, memory: Memory | None = None) -> None:
        self._store = store
        self._layout = layout
        self._ref = ref
        self._memory = memory or Memory()

    async def nodes(self) -> list[str]:
        listing = await self._store.list_folder(self._layout.packs_prefix(self._ref))
        return [folder for folder in listing.folders if is_node_folder(folder)]

    async def files(self, node: str) -> list[LogFile]:
        reader = await self._reader(node)
        return [LogFile(name, stream.size) for name, stream in sorted(reader.names.items())]

    async def read(self, node: str, path: str, start: int, end: int) -> bytes:
        return await (await self._reader(node)).read(path, start, end)

    async def _reader(self, node: str) -> PackReader:
        if not is_node_folder(node):
            raise LogNotFound(f"not a node: {node!r}")
        reader = self._memory.reader(self._store, self._layout.node_packs_prefix(self._ref, node))
        if time.monotonic() - reader.refreshed >= FRESH:
            await reader.refresh()
        return reader


class AllLogs:
    """Files of all ways together; of a file that is there in several, the longest, and among equals the whole one."""

    def __init__(self, *ways: Logs) -> None:
        self._ways = ways

    async def nodes(self) -> list[str]:
        found = await asyncio.gather(*(way.nodes() for way in self._ways))
        return sorted({node for nodes in found for node in nodes})

    async def files(self, node: str) -> list[LogFile]:
        return [file for file, _ in (await self._chosen(node)).values()]

    async def read(self, node: str, path: str, start: int, end: int) -> bytes:
        file, way = here_or_moved(await self._chosen(node), path)
        return await way.read(node, file.path, start, end)

    async def _chosen(self, node: str) -> dict[str, tuple[LogFile, Logs]]:
        chosen: dict[str, tuple[LogFile, Logs]] = {}
        for way, files in zip(self._ways, await asyncio.gather(*(way.files(node) for way in self._ways)), strict=True):
            for file in files:
                if file.path not in chosen or file.size > chosen[file.path][0].size:
                    chosen[file.path] = (file, way)
        return dict(sorted(chosen.items()))


def here_or_moved(files: Mapping[str, T], path: str) -> T:
    """A file by its name, also when it was moved away."""
    for name in (path, MOVED + path):
        if name in files:
            return files[name]
    raise LogNotFound(f"A file is not found at: {path}")


async def find_file(logs: Logs, node: str, path: str) -> LogFile:
    """A file by its name: only what is listed can be read, so no path leads anywhere else."""
    return here_or_moved({file.path: file for file in await logs.files(node)}, path)


async def start_of_last_lines(logs: Logs, node: str, path: str, end: int, lines: int, *, start: int = 0) -> int:
    """Where the last `lines` lines of [start, end) begin; reads backwards, and no more than it must."""
    if lines <= 0:
        return end
    position, found = end, 0
    while position > start:
        begin = max(start, position - _STEP)
        block = await logs.read(node, path, begin, position)
        at = len(block)
        if position == end and block.endswith(b"\n"):
            at -= 1  # the newline that ends the last line does not begin another one
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            found += 1
            if found == lines:
                return begin + at + 1
        position = begin
    return start
