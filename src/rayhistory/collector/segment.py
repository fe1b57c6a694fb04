"""One file of the spool: a write-ahead log whose records are lines `<category> <event JSON>`.

Its name is `<created ns>[-<node id>].wal`. The node id is added by renaming as soon as it is known, so that
what a segment becomes in the store depends on it alone: after a crash the same objects are written again.
"""

import dataclasses
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_NAME = re.compile(r"(\d{1,20})(?:-([A-Za-z0-9._-]+))?\.wal\Z")
_CATEGORY = re.compile(rb"(node_events|snapshots|job_events/[A-Za-z0-9._-]+)\Z")
_READ = 1 << 20


@dataclasses.dataclass(eq=False)
class Segment:
    path: Path
    session: str
    created_ns: int
    node: str | None
    size: int

    @classmethod
    def found(cls, path: Path) -> "Segment | None":
        """A segment that is on disk; None when the name is not one of ours."""
        match = _NAME.match(path.name)
        if not match:
            return None
        return cls(path, path.parent.name, int(match[1]), match[2], path.stat().st_size)

    def belongs_to(self, node: str) -> None:
        path = self.path.with_name(f"{self.created_ns}-{node}.wal")
        self.path.rename(path)
        self.path, self.node = path, node


class OpenSegment(Segment):
    """The segment of a session to which records are appended."""

    descriptor: int
    opened: float

    @classmethod
    def create(cls, directory: Path, created_ns: int, node: str | None) -> "OpenSegment":
        make_directory(directory)
        path = directory / (f"{created_ns}-{node}.wal" if node else f"{created_ns}.wal")
        segment = cls(path, directory.name, created_ns, node, 0)
        segment.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        segment.opened = time.monotonic()
        sync_directory(directory)
        return segment

    def append(self, data: bytes) -> None:
        """When this returns, the data are on disk. When it raises, the caller closes the segment.

        What a failed write left behind is cut off: it was not acknowledged, and is sent again.
        """
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self.descriptor, view) :]
            os.fdatasync(self.descriptor)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self.descriptor, self.size)
            raise
        self.size += len(data)

    def close(self) -> None:
        os.close(self.descriptor)


@dataclasses.dataclass
class Damage:
    """What a reading of a segment had to leave out."""

    torn: int = 0
    lines: list[bytes] = dataclasses.field(default_factory=list)


def records(path: Path, damage: Damage) -> Iterator[tuple[str, bytes]]:
    """Category and line (with its newline) of every whole record. A torn last line was never acknowledged."""
    with path.open("rb", buffering=_READ) as file:
        for line in file:
            category, space, event = line.partition(b" ")
            if not line.endswith(b"\n"):
                damage.torn += 1
            elif not space or not _CATEGORY.match(category) or not event.startswith(b"{"):
                damage.lines.append(line[:_READ])
            else:
                yield category.decode(), event


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
