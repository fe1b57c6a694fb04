"""A directory that only the collector can use, even if jobs can write to the directory around it.

The directory and its subdirectories have mode 0700 and must belong to the collector's user or to root. Every file is
opened relative to a directory descriptor and without following links. So a job cannot make the collector read or write
elsewhere.
"""

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from rayhistory.collector.held_directory import FOLDER_FLAGS, open_file_below

_ROOT_USER = 0
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe would block


class PrivateDirectory:
    """Holds the directory open. Subdirectories are opened for each call, because there may be a thousand.

    The operator chooses the path down to `base` (by default the parent), and it may contain links. Links below `base`
    are refused.
    """

    def __init__(self, path: Path, base: Path | None = None, *, parent: "PrivateDirectory | None" = None) -> None:
        self.path = path
        self._base = base or path.parent
        self._parent = parent
        self._descriptor: int | None = None
        self._lock = threading.Lock()

    def folder(self, name: str) -> "PrivateDirectory":
        """Return a subdirectory. It need not exist."""
        return PrivateDirectory(self.path / name, parent=self)

    # Directories

    def make(self) -> None:
        """Create the directory and sync its parents, so that it survives a power failure."""
        if self._parent:
            self._parent.make()
            with self._parent._open() as outer:
                try:
                    os.close(_open_or_make(outer, self.path.name, self.path))
                except NotADirectoryError:
                    os.unlink(self.path.name, dir_fd=outer)  # somebody has put a link or a file into our directory
                    os.close(_open_or_make(outer, self.path.name, self.path))
        else:
            self._base.mkdir(parents=True, exist_ok=True)
            with self._lock:
                self._hold(make=True)

    def names(self) -> list[str]:
        with self._open() as descriptor:
            return sorted(os.listdir(descriptor))  # noqa: PTH208 - there is only the descriptor

    def sync(self) -> None:
        with self._open() as descriptor:
            os.fsync(descriptor)

    def clear(self) -> None:
        """Remove the files in the directory; subdirectories stay."""
        with self._open() as descriptor:
            for name in os.listdir(descriptor):  # noqa: PTH208
                with suppress(IsADirectoryError):
                    os.unlink(name, dir_fd=descriptor)

    def remove(self) -> None:
        """Remove this subdirectory, if it is empty."""
        assert self._parent  # noqa: S101 - only subdirectories are removed
        with self._parent._open() as descriptor:
            os.rmdir(self.path.name, dir_fd=descriptor)

    # Files

    def open(self, name: str, buffering: int = -1) -> BinaryIO:
        with self._open() as descriptor:
            return open(open_file_below(descriptor, name), "rb", buffering)  # noqa: PTH123 - there is only the descriptor

    def create(self, name: str, flags: int = os.O_TRUNC) -> int:
        """Open a file for writing and return its descriptor."""
        with self._open() as descriptor:
            return os.open(name, _CREATE_FLAGS | flags, 0o600, dir_fd=descriptor)

    def read(self, name: str, max_bytes: int = -1) -> bytes:
        with self.open(name) as file:
            return file.read(max_bytes)

    def write(self, name: str, data: bytes, *, sync: bool = False) -> None:
        """Replace a file atomically."""
        half = f"{name}.half"
        try:
            file = self.create(half, os.O_EXCL)
        except FileExistsError:  # of a process that was killed, or a link
            self.unlink(half)
            file = self.create(half, os.O_EXCL)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
            if sync:
                os.fsync(file)
        finally:
            os.close(file)
        self.rename(half, name)
        if sync:
            self.sync()

    def rename(self, old: str, new: str) -> None:
        with self._open() as descriptor:
            os.rename(old, new, src_dir_fd=descriptor, dst_dir_fd=descriptor)

    def unlink(self, name: str) -> None:
        """Remove a file, if it exists."""
        with suppress(FileNotFoundError), self._open() as descriptor:
            os.unlink(name, dir_fd=descriptor)

    def exists(self, name: str) -> bool:
        try:
            self.status(name)
        except OSError:
            return False
        return True

    def status(self, name: str) -> os.stat_result:
        """Return the file status (`lstat`) of a name in the directory. Links are not followed."""
        with self._open() as descriptor:
            return os.stat(name, dir_fd=descriptor, follow_symlinks=False)

    # Descriptors

    @contextmanager
    def _open(self) -> Iterator[int]:
        if self._parent:
            with self._parent._open() as outer:
                descriptor = _open_own(outer, self.path.name, self.path)
            try:
                yield descriptor
            finally:
                os.close(descriptor)
        else:
            with self._lock:
                descriptor = self._hold(make=False)
            yield descriptor

    def _hold(self, *, make: bool) -> int:
        if self._descriptor is not None:
            if os.fstat(self._descriptor).st_nlink:
                return self._descriptor
            self._descriptor = None  # somebody has removed the directory; other threads may still use the descriptor
        inner = os.open(self._base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for part in self.path.relative_to(self._base).parts:
            outer = inner
            try:
                inner = (_open_or_make if make else _open_own)(outer, part, self.path)
            finally:
                os.close(outer)
        self._descriptor = inner
        return inner

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _open_or_make(outer: int, name: str, path: Path) -> int:
    try:
        return _open_own(outer, name, path)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=outer)
        os.fsync(outer)
        return _open_own(outer, name, path)


def _open_own(outer: int, name: str, path: Path) -> int:
    """Open a directory that belongs to this user or to root, without following links.

    Remove the permissions of other users.
    """
    try:
        descriptor = os.open(name, FOLDER_FLAGS, dir_fd=outer)
    except NotADirectoryError:
        raise NotADirectoryError(f"{name} in {path} is a link or a file, but the collector needs a directory") from None
    try:
        _check_owner(descriptor, f"{path}: {name}")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _check_owner(descriptor: int, place: str) -> None:
    status, user = os.fstat(descriptor), os.geteuid()
    if status.st_uid not in {user, _ROOT_USER}:  # some volumes show every file as root's
        raise PermissionError(f"{place} belongs to user {status.st_uid}, but the collector runs as user {user}")
    if status.st_uid == user and stat.S_IMODE(status.st_mode) & 0o077:
        os.fchmod(descriptor, 0o700)
