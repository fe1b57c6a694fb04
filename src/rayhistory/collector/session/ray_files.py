"""Read files in a session directory, which jobs can change. Links are not followed."""

import heapq
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from rayhistory.collector.held_directory import open_file_below, open_folder_below

READ_BYTES = 1 << 20


def open_regular_file(directory: Path, name: str) -> BinaryIO:
    """Open a file below a directory; raise OSError for anything but a regular file."""
    with _opened(directory) as folder:
        return open(open_file_below(folder, name), "rb")  # noqa: PTH123 - there is only the descriptor


def scan_folder(
    directory: Path, name: str = "", pattern: re.Pattern[str] | None = None
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the names below a directory that match, with their status; nothing if there is no such directory.

    A job can create millions of files. So names are not collected here, and only matching files are examined.
    """
    with suppress(OSError), _opened(directory, name) as folder, os.scandir(folder) as inside:
        for entry in inside:
            if pattern is None or pattern.match(entry.name):
                with suppress(OSError):  # removed since
                    yield entry.name, entry.stat(follow_symlinks=False)


def newest_files(directory: Path, name: str, pattern: re.Pattern[str], limit: int) -> list[str]:
    """Return the names of matching regular files, newest first."""
    files = scan_folder(directory, name, pattern)
    times = ((status.st_mtime_ns, file) for file, status in files if stat.S_ISREG(status.st_mode))
    return [file for _, file in heapq.nlargest(limit, times)]


def read_start(directory: Path, name: str) -> bytes:
    """Read the first megabyte of a file; empty if it cannot be read."""
    try:
        with open_regular_file(directory, name) as file:
            return file.read(READ_BYTES)
    except OSError:
        return b""


@contextmanager
def _opened(directory: Path, name: str = "") -> Iterator[int]:
    outer = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        inner = open_folder_below(outer, name)
    finally:
        os.close(outer)
    try:
        yield inner
    finally:
        os.close(inner)
