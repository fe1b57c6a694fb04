"""Segments: the files of the spool. Each is a sequence of gzip members (see `block`).

A segment is named `<created ns>[-<node id>].wal`. The node id is added by renaming when it is known. The objects of a
segment depend only on the segment, so after a crash the same objects are written again.
"""

import dataclasses
import os
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from rayhistory.collector.spool.block import (
    READ_BYTES,
    Block,
    Damage,
    compress_block,
    read_members,
)
from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.sessions.keys import DASHBOARD_RESPONSES
from rayhistory.sessions.kuberay_keys import NODE_EVENTS

_NAME = re.compile(r"(\d{1,20})(?:-([A-Za-z0-9._-]+))?\.wal\Z")
_MAX_CATEGORIES = 256


@dataclasses.dataclass(eq=False)
class Segment:
    folder: PrivateDirectory
    name: str
    session: str
    created_ns: int
    node: str | None
    size: int = 0
    raw_size: int = 0
    """Number of bytes of all lines before compression."""
    events: int = 0
    """Number of lines that are events of Ray. Dashboard responses do not count."""
    opened: float = dataclasses.field(default_factory=time.monotonic)
    trusted: bool = False
    """True if this process wrote and synced the segment. Then checksums need not be verified."""

    @classmethod
    def find(cls, folder: PrivateDirectory, name: str) -> "Segment | None":
        """Open an existing segment; return None when the file is not named like a segment."""
        match = _NAME.match(name)
        if not match or not S_ISREG((status := folder.status(name)).st_mode):
            return None
        segment = cls(folder, name, folder.path.name, int(match[1]), match[2], status.st_size)
        with segment.open() as file:
            for member in read_members(file, Damage(), with_data=False):
                segment.raw_size += member.raw_size
                segment.events += member.lines * (member.category != DASHBOARD_RESPONSES)
        return segment

    @property
    def path(self) -> Path:
        """The path, for messages and to tell segments apart."""
        return self.folder.path / self.name

    def open(self) -> BinaryIO:
        return self.folder.open(self.name, READ_BYTES)

    def assign_node(self, node: str) -> None:
        name = f"{self.created_ns}-{node}.wal"
        self.folder.rename(self.name, name)
        self.name, self.node = name, node


@dataclasses.dataclass(eq=False)
class OpenSegment(Segment):
    """The segment to which blocks of a session are appended."""

    descriptor: int = -1
    sync_seconds: float = 0.0
    """Duration of the last fdatasync."""
    last_append_ms: int = 0
    """Time of the last append, in milliseconds since the epoch."""
    categories: set[str] = dataclasses.field(default_factory=lambda: {NODE_EVENTS, DASHBOARD_RESPONSES})

    @classmethod
    def create(cls, folder: PrivateDirectory, created_ns: int, node: str | None) -> "OpenSegment":
        folder.make()
        name = f"{created_ns}-{node}.wal" if node else f"{created_ns}.wal"
        segment = cls(folder, name, folder.path.name, created_ns, node, trusted=True)
        segment.descriptor = folder.create(name, os.O_EXCL | os.O_APPEND)
        try:
            folder.sync()
        except OSError:
            os.close(segment.descriptor)
            with suppress(OSError):
                folder.unlink(name)
            raise
        return segment

    def limit_categories(self, blocks: Iterable[Block]) -> list[Block]:
        """Move the events of further jobs to the category of node events if the segment has too many categories.

        Each category becomes one object. Readers also find job events among node events.
        """
        limited = []
        for block in blocks:
            if block.category not in self.categories:
                if len(self.categories) >= _MAX_CATEGORIES:
                    block = block._replace(category=NODE_EVENTS)  # noqa: PLW2901
                self.categories.add(block.category)
            limited.append(block)
        return limited

    def append(self, blocks: Sequence[Block]) -> int:
        """Write and sync the blocks; return the number of bytes. After an OSError the caller must close the segment.

        The bytes of a failed write are removed. Their events were not acknowledged, so Ray sends them again.
        """
        data = b"".join(map(compress_block, blocks))
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
            self.raw_size += len(block.data)
            self.events += block.lines * (block.category != DASHBOARD_RESPONSES)
        return len(data)

    def close(self) -> None:
        os.close(self.descriptor)
