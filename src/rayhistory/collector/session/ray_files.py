"""Open files in Ray's temporary directory, which other processes control."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

READ_BYTES = 1 << 20


def open_regular_file(path: Path) -> BinaryIO:
    """Open a file; raise OSError for anything but a regular file: opening a pipe could block forever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"not a regular file: {path}")
    return open(descriptor, "rb")  # noqa: PTH123 - there is only the descriptor


def read_start(path: Path) -> bytes:
    """Read the first megabyte of a file; empty if it cannot be read."""
    try:
        with open_regular_file(path) as file:
            return file.read(READ_BYTES)
    except OSError:
        return b""
