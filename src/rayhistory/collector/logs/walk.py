"""Find log files: regular files below the logs directory, and links to such files inside it.

The directory is untrusted: its owner may replace anything with a link after it was listed. So a directory is read only
if it is still the one that was found, and a file is opened without following any link below the directory.
"""

import os
import stat
from collections.abc import Container, Sized
from typing import NamedTuple

from rayhistory.collector.held_directory import FOLDER_FLAGS, open_file_below

MAX_FILES = 50_000
"""Maximum number of tracked files.

Each costs memory, and an entry in the pack directory, which is always read as a whole.
"""
_MAX_NAME_BYTES = 512


class FileEntry(NamedTuple):
    name: str
    """Path of the file below the logs directory."""
    key: tuple[int, int]
    """Device and inode of the file, which identify it."""
    size: int
    modified_ns: int


class WalkResult(NamedTuple):
    entries: list[FileEntry]
    links: list[tuple[str, FileEntry]]
    """Names of symbolic links, and their targets."""
    folders: list[str]
    excess: int
    """Number of files, links and directories over the limit."""


def walk(root: str, limit: int | None = None, tracked: Container[tuple[int, int]] = ()) -> WalkResult | None:
    """List the files below `root`. Return None if `root` is missing, a link, or not a directory.

    Above the limit, only files whose keys are in `tracked` are listed. The others are counted.
    """
    return _Walk(root, limit, tracked).run()


def open_inside(root: str, name: str) -> int:
    """Open a listed file and return its descriptor; raise OSError if it is gone or was replaced."""
    folder = os.open(root, FOLDER_FLAGS)
    try:
        return open_file_below(folder, name)
    finally:
        os.close(folder)


def describe_excess(excess: int) -> list[str]:
    """Describe files over the limit, for a list of files that are not uploaded."""
    return [f"({excess} more, over the limit of {MAX_FILES} files)"] if excess else []


class _Folder(NamedTuple):
    path: str
    prefix: str
    key: tuple[int, int] | None


class _Walk:
    def __init__(self, root: str, limit: int | None, tracked: Container[tuple[int, int]]) -> None:
        parent, _, name = root.rpartition("/")
        self._real_root = f"{os.path.realpath(parent or '/')}/{name}"
        self._limit = limit
        self._tracked = tracked
        self._entries: list[FileEntry] = []
        self._links: list[tuple[str, FileEntry]] = []
        self._folders = [_Folder(root, "", None)]
        self._excess = 0

    def run(self) -> WalkResult | None:
        for folder in self._folders:  # grows during the loop
            try:
                self._read(folder)
            except OSError:
                if folder.key is None:
                    return None
        return WalkResult(self._entries, self._links, [folder.path for folder in self._folders], self._excess)

    def _read(self, folder: _Folder) -> None:
        descriptor = os.open(folder.path, FOLDER_FLAGS)
        try:
            status = os.fstat(descriptor)
            if folder.key in {None, (status.st_dev, status.st_ino)}:
                with os.scandir(descriptor) as inside:
                    for entry in inside:
                        self._add(entry, folder)
        finally:
            os.close(descriptor)

    def _add(self, entry: os.DirEntry[str], folder: _Folder) -> None:
        name = folder.prefix + entry.name
        try:
            if entry.is_symlink():
                target = self._link_target(f"{folder.path}/{entry.name}")
                if target and _is_utf8(name) and self._has_room(name, self._entries, self._links):
                    self._links.append((name, target))
                return
            status = entry.stat(follow_symlinks=False)
        except OSError:
            return  # removed since
        key = (status.st_dev, status.st_ino)
        if stat.S_ISREG(status.st_mode):
            is_tracked = status.st_nlink == 1 and key in self._tracked  # hard links: one file, any number of names
            if _is_utf8(name) and (is_tracked or self._has_room(name, self._entries, self._links)):
                self._entries.append(FileEntry(name, key, status.st_size, status.st_mtime_ns))
        elif stat.S_ISDIR(status.st_mode) and self._has_room(name, self._folders):
            self._folders.append(_Folder(f"{folder.path}/{entry.name}", f"{name}/", key))

    def _link_target(self, path: str) -> FileEntry | None:
        """Return the target of a link if it is a regular file inside the directory."""
        target = os.path.realpath(path, strict=True)
        status = os.stat(target, follow_symlinks=False)  # noqa: PTH116 - a Path per file and round costs more than the rest
        if not target.startswith(self._real_root + "/") or not stat.S_ISREG(status.st_mode):
            return None
        name = target.removeprefix(self._real_root + "/")
        return FileEntry(name, (status.st_dev, status.st_ino), status.st_size, status.st_mtime_ns)

    def _has_room(self, name: str, *lists: Sized) -> bool:
        if self._limit is None:
            return True
        if sum(map(len, lists)) < self._limit and len(name) * (1 if name.isascii() else 4) <= _MAX_NAME_BYTES:
            return True
        self._excess += 1
        return False


def _is_utf8(name: str) -> bool:
    """Return whether a name is valid UTF-8. Object keys must be."""
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
