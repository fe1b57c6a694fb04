"""Open files relative to directory descriptors, and never through a symbolic link.

Jobs can write to Ray's temporary directory. A job can replace a file or directory by a link between the check of a path
and its use. A descriptor still refers to the checked file.
"""

import asyncio
import os
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # opening a pipe would block
_CLOSE_DELAY_S = 600.0  # a store's thread may still open the path of a cancelled upload: keep its descriptor number


def open_file_below(folder: int, name: str) -> int:
    """Open a regular file below an open directory for reading; raise OSError for anything else."""
    *folders, last = name.split("/")
    inner = open_folder_below(folder, "/".join(folders))
    try:
        descriptor = os.open(last, FILE_FLAGS, dir_fd=inner)
    finally:
        os.close(inner)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(f"{name} is not a regular file")
    return descriptor


def open_folder_below(folder: int, name: str) -> int:
    """Open a directory below an open directory. An empty name opens the same directory again."""
    inner = os.dup(folder)
    for part in filter(None, name.split("/")):
        outer = inner
        try:
            inner = os.open(part, FOLDER_FLAGS, dir_fd=outer)
        finally:
            os.close(outer)
    return inner


class HeldDirectory:
    """A directory that is held open, so that a job cannot replace it by another one.

    `path` refers to the directory through its descriptor while this object exists. Use it to access files below.
    """

    def __init__(self, descriptor: int, place: Path) -> None:
        self.place = place
        """Path at which the directory was opened. It is used in messages and names only, never to open files."""
        status = os.fstat(descriptor)
        self.key = status.st_dev, status.st_ino
        self.changed_ns = status.st_ctime_ns
        through = Path(f"/proc/self/fd/{descriptor}")
        self.path = through if through.exists() else place
        weakref.finalize(self, os.close, descriptor)

    @classmethod
    def open(cls, root: Path, *names: str) -> "HeldDirectory":
        """Open a directory below `root`.

        Raise OSError if it does not exist or is a link. `root` itself may be a link.
        """
        outer = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return cls(open_folder_below(outer, "/".join(names)), root.joinpath(*names))
        finally:
            os.close(outer)

    @property
    def name(self) -> str:
        return self.place.name


@contextmanager
def stable_path(descriptor: int, place: Path) -> Iterator[Path]:
    """Yield a path that refers to the open file even if `place` is renamed or replaced; close the file at the end."""
    path, close_delay = Path(f"/proc/self/fd/{descriptor}"), 0.0
    try:
        yield path if path.exists() else place
    except asyncio.CancelledError:
        close_delay = _CLOSE_DELAY_S
        raise
    finally:
        asyncio.get_running_loop().call_later(close_delay, os.close, descriptor)
