"""Which log files there are: regular files below the logs directory, and links to such files inside it.

The directory is others' to change, and they may put a link to anything in the place of what was found. So a folder is
read only if it is the one that was found, and a file is opened without following a link anywhere below the directory.
"""

import os
import stat
from collections.abc import Container, Sized
from pathlib import Path
from typing import NamedTuple

MOST_FILES = 50_000
"""That are followed: each costs memory, and a line in a directory that is read at once."""
_LONGEST_NAME = 512
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe would be waited for


class Entry(NamedTuple):
    name: str
    """Path below the logs directory."""
    key: tuple[int, int]
    """Device and inode."""
    size: int
    modified_ns: int


class Walked(NamedTuple):
    entries: list[Entry]
    links: list[tuple[str, Entry]]
    """Names of symbolic links, and what they lead to."""
    folders: list[str]
    beyond: int
    """How many more files, links and folders there are than were asked for."""


def walk(root: str, most: int | None = None, known: Container[tuple[int, int]] = ()) -> Walked | None:
    """None when there is no such directory, or a link in its place: that is not the same as an empty one. Of more than
    `most`, those that are known are named, and the rest is counted."""
    path = Path(root)
    return _Walk(str(path.parent.resolve() / path.name), most, known).walked()


def open_inside(root: str, name: str) -> int:
    """A descriptor of a file that was found; an OSError when there is none any more."""
    *folders, last = name.split("/")
    inner = os.open(root, _FOLDER)
    try:
        for folder in folders:
            outer, inner = inner, os.open(folder, _FOLDER, dir_fd=inner)
            os.close(outer)
        descriptor = os.open(last, _FILE, dir_fd=inner)
    finally:
        os.close(inner)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(f"{root}/{name}: not a file any more")
    return descriptor


def told(beyond: int) -> list[str]:
    """For a list of what was left behind."""
    return [f"({beyond} more than the {MOST_FILES} that are followed)"] if beyond else []


class _Folder(NamedTuple):
    path: str
    prefix: str
    key: tuple[int, int] | None


class _Walk:
    def __init__(self, root: str, most: int | None, known: Container[tuple[int, int]]) -> None:
        self._root = root
        self._most = most
        self._known = known
        self._entries: list[Entry] = []
        self._links: list[tuple[str, Entry]] = []
        self._folders = [_Folder(root, "", None)]
        self._beyond = 0

    def walked(self) -> Walked | None:
        for folder in self._folders:  # becomes longer meanwhile
            try:
                self._read(folder)
            except OSError:
                if folder.key is None:
                    return None
        return Walked(self._entries, self._links, [folder.path for folder in self._folders], self._beyond)

    def _read(self, folder: _Folder) -> None:
        descriptor = os.open(folder.path, _FOLDER)
        try:
            status = os.fstat(descriptor)
            if folder.key in {None, (status.st_dev, status.st_ino)}:
                with os.scandir(descriptor) as inside:
                    for entry in inside:
                        self._take(entry, folder)
        finally:
            os.close(descriptor)

    def _take(self, entry: os.DirEntry[str], folder: _Folder) -> None:
        name = folder.prefix + entry.name
        try:
            if entry.is_symlink():
                target = self._inside(f"{folder.path}/{entry.name}")
                if target and _is_text(name) and self._has_room(name, self._entries, self._links):
                    self._links.append((name, target))
                return
            status = entry.stat(follow_symlinks=False)
        except OSError:
            return  # gone meanwhile
        key = (status.st_dev, status.st_ino)
        if stat.S_ISREG(status.st_mode):
            known = status.st_nlink == 1 and key in self._known  # a file may have any number of names
            if _is_text(name) and (known or self._has_room(name, self._entries, self._links)):
                self._entries.append(Entry(name, key, status.st_size, status.st_mtime_ns))
        elif stat.S_ISDIR(status.st_mode) and self._has_room(name, self._folders):
            self._folders.append(_Folder(f"{folder.path}/{entry.name}", f"{name}/", key))

    def _inside(self, path: str) -> Entry | None:
        """What a link leads to, if that is a file inside the directory: a link must not lead out of it."""
        target = os.path.realpath(path, strict=True)
        status = os.stat(target, follow_symlinks=False)  # noqa: PTH116 - a Path per file and round costs more than the rest
        if not target.startswith(self._root + "/") or not stat.S_ISREG(status.st_mode):
            return None
        name = target.removeprefix(self._root + "/")
        return Entry(name, (status.st_dev, status.st_ino), status.st_size, status.st_mtime_ns)

    def _has_room(self, name: str, *found: Sized) -> bool:
        if self._most is None:
            return True
        if sum(map(len, found)) < self._most and len(name) * (1 if name.isascii() else 4) <= _LONGEST_NAME:
            return True
        self._beyond += 1
        return False


def _is_text(name: str) -> bool:
    """Names that are no text have no place in a store."""
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
