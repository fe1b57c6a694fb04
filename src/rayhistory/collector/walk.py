"""Which log files there are: regular files below the logs directory, and links to such files inside it."""

import os
import stat
from typing import NamedTuple

_NO_SUCH: tuple[int, int] = (-1, -1)


class Entry(NamedTuple):
    name: str
    """Path below the logs directory."""
    key: tuple[int, int]
    """Device and inode."""
    size: int
    modified_ns: int


class Walked(NamedTuple):
    entries: list[Entry]
    links: list[tuple[str, tuple[int, int]]]
    """Names of symbolic links, and what they lead to."""
    folders: list[str]


def walk(root: str) -> Walked | None:
    """None when there is no such directory: that is not the same as an empty one."""
    root = os.path.realpath(root)
    found = Walked([], [], [root])
    folders = [(root, "")]
    while folders:
        folder, prefix = folders.pop()
        try:
            with os.scandir(folder) as inside:
                for entry in inside:
                    _take(entry, prefix, root, found, folders)
        except OSError:
            if folder == root:
                return None
    return found


def _take(entry: os.DirEntry[str], prefix: str, root: str, found: Walked, folders: list[tuple[str, str]]) -> None:
    name = prefix + entry.name
    try:
        if entry.is_symlink():
            key = _inside(entry.path, root)
            if key != _NO_SUCH and _is_text(name):
                found.links.append((name, key))
            return
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return  # gone meanwhile
    if stat.S_ISREG(status.st_mode):
        if name.isascii() or _is_text(name):
            key = (status.st_dev, status.st_ino)
            found.entries.append(Entry(name, key, status.st_size, status.st_mtime_ns))
    elif stat.S_ISDIR(status.st_mode):
        folders.append((entry.path, f"{name}/"))
        found.folders.append(entry.path)


def _inside(path: str, root: str) -> tuple[int, int]:
    """What a link leads to, if that is a file inside the directory: a link must not lead out of it."""
    target = os.path.realpath(path, strict=True)
    status = os.stat(target, follow_symlinks=False)  # noqa: PTH116 - a Path per file and round costs more than the rest
    if not target.startswith(root + "/") or not stat.S_ISREG(status.st_mode):
        return _NO_SUCH
    return status.st_dev, status.st_ino


def _is_text(name: str) -> bool:
    """Names that are no text have no place in a store."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
