"""The one seam through which logs are read: list, size, byte range. Whole files, as KubeRay keeps them, are one way."""

import time
from typing import Protocol

import msgspec

from rayhistory.errors import LogNotFound, ObjectNotFound
from rayhistory.layout import Layout, SessionRef
from rayhistory.layout.keys import is_node_folder
from rayhistory.storage import Store

_FRESH = 5.0
_STEP = 256 << 10


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
    """Each log file is one object."""

    def __init__(self, store: Store, layout: Layout, ref: SessionRef) -> None:
        self._store = store
        self._layout = layout
        self._ref = ref
        self._listed: dict[str, tuple[float, list[LogFile]]] = {}

    async def nodes(self) -> list[str]:
        listing = await self._store.list_folder(self._layout.history_prefix(self._ref))
        return [folder for folder in listing.folders if is_node_folder(folder)]

    async def files(self, node: str) -> list[LogFile]:
        known = self._listed.get(node)
        if known and time.monotonic() - known[0] < _FRESH:
            return known[1]
        prefix = self._layout.logs_prefix(self._ref, node)
        files = [
            LogFile(info.key[len(prefix) + 1 :], info.size)
            async for info in self._store.list_all(prefix)
            if not info.key.endswith("/")
        ]
        self._listed[node] = (time.monotonic(), files)
        return files

    async def read(self, node: str, path: str, start: int, end: int) -> bytes:
        try:
            return await self._store.get_range(self._layout.log_key(self._ref, node, path), start, end)
        except ObjectNotFound:
            raise LogNotFound(f"A file is not found at: {path}") from None


async def find_file(logs: Logs, node: str, path: str) -> LogFile:
    """A file by its exact name: only what is listed can be read, so no path leads anywhere else."""
    for file in await logs.files(node):
        if file.path == path:
            return file
    raise LogNotFound(f"A file is not found at: {path}")


async def start_of_last_lines(logs: Logs, node: str, path: str, end: int, lines: int) -> int:
    """Where the last `lines` lines before `end` begin; reads backwards, and no more than it must."""
    if lines <= 0:
        return end
    position, found = end, 0
    while position > 0:
        begin = max(0, position - _STEP)
        block = await logs.read(node, path, begin, position)
        at = len(block)
        if position == end and block.endswith(b"\n"):
            at -= 1  # the newline that ends the last line does not begin another one
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            found += 1
            if found == lines:
                return begin + at + 1
        position = begin
    return 0
