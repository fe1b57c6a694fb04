"""Read files in a session directory, which jobs can change. Links are not followed."""

import os
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


def list_folder(directory: Path, name: str = "") -> list[tuple[str, os.stat_result]]:
    """List the names below a directory with their status; empty if there is no such directory."""
    entries = []
    try:
        with _opened(directory, name) as folder, os.scandir(folder) as inside:
            for entry in inside:
                with suppress(OSError):  # removed since
                    entries.append((entry.name, entry.stat(follow_symlinks=False)))
    except OSError:
        return []
    return entries


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
