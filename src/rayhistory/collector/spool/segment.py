"""One file of the spool: a write-ahead log, a row of gzip members (see `block`).

Its name is `<created ns>[-<node id>].wal`. The node id is added by renaming as soon as it is known, so that
what a segment becomes in the store depends on it alone: after a crash the same objects are written again.
"""

import dataclasses
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from rayhistory.collector.block import Block, Damage, checked, members, pack
from rayhistory.layout.keys import NODE_EVENTS, SNAPSHOTS

_NAME = re.compile(r"(\d{1,20})(?:-([A-Za-z0-9._-]+))?\.wal\Z")
_MOST_CATEGORIES = 256


@dataclasses.dataclass(eq=False)
class Segment:
    path: Path
    session: str
    created_ns: int
    node: str | None
    size: int = 0
    raw: int = 0
    """Bytes of the lines in it, before they were compressed."""
    events: int = 0
    """Lines that are Ray's events: what we ask the dashboard is not counted."""
    opened: float = dataclasses.field(default_factory=time.monotonic)
    trusted: bool = False
    """Written by this process, so that every byte of it is known to be on disk."""

    @classmethod
    def found(cls, path: Path) -> "Segment | None":
        """A segment that is on disk; None when the name is not one of ours."""
        match = _NAME.match(path.name)
        if not match or not path.is_file():
            return None
        segment = cls(path, path.parent.name, int(match[1]), match[2], path.stat().st_size)
        for member in members(path, Damage(), data=False):
            segment.raw += member.raw
            segment.events += member.lines * (member.category != SNAPSHOTS)
        return segment

    def belongs_to(self, node: str) -> None:
        path = self.path.with_name(f"{self.created_ns}-{node}.wal")
        self.path.rename(path)
        self.path, self.node = path, node


@dataclasses.dataclass(eq=False)
class OpenSegment(Segment):
    """The segment of a session to which blocks are appended."""

    descriptor: int = -1
    sync_seconds: float = 0.0
    """How long the disk took the last time."""
    categories: set[str] = dataclasses.field(default_factory=lambda: {NODE_EVENTS, SNAPSHOTS})

    @classmethod
    def create(cls, directory: Path, created_ns: int, node: str | None) -> "OpenSegment":
        make_directory(directory)
        path = directory / (f"{created_ns}-{node}.wal" if node else f"{created_ns}.wal")
        segment = cls(path, directory.name, created_ns, node, trusted=True)
        segment.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            sync_directory(directory)
        except OSError:
            os.close(segment.descriptor)
            with suppress(OSError):
                path.unlink()
            raise
        return segment

    def filed(self, blocks: Iterable[Block]) -> list[Block]:
        """The blocks as they are to be appended. Each job becomes an object of its own: when they are too many, the
        rest of their events is filed with the node's, where it is read as well."""
        filed = []
        for block in blocks:
            if block.category not in self.categories:
                if len(self.categories) >= _MOST_CATEGORIES:
                    block = block._replace(category=NODE_EVENTS)  # noqa: PLW2901
                self.categories.add(block.category)
            filed.append(block)
        return filed

    def append(self, blocks: Sequence[Block]) -> int:
        """When this returns the number of bytes, they are on disk. When it raises, the caller closes the segment.

        What a failed write left behind is cut off: it was not acknowledged, and is sent again.
        """
        data = b"".join(map(pack, blocks))
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self.descriptor, view) :]
            began = time.monotonic()
            os.fdatasync(self.descriptor)
            self.sync_seconds = time.monotonic() - began
        except OSError:
            self.trusted = False
            with suppress(OSError):
                os.ftruncate(self.descriptor, self.size)
            raise
        self.size += len(data)
        for block in blocks:
            self.raw += len(block.data)
            self.events += block.lines * (block.category != SNAPSHOTS)
        return len(data)

    def close(self) -> None:
        os.close(self.descriptor)


def records(path: Path, damage: Damage) -> Iterator[tuple[str, bytes]]:
    """Category and line (with its newline) of every record."""
    for member, data in checked(path, damage):
        for line in data.split(b"\n")[:-1]:
            yield member.category, line + b"\n"


def make_directory(path: Path) -> None:
    """Makes a directory that is still there after a power loss."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
