"""Scratch directories that are removed even if their process is killed.

A process holds a lock on a file beside its scratch directory. If a lock file is not locked, its process was killed, and
the next process that creates a scratch directory removes the old one.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

_LOCK_SUFFIX = ".lock"


@contextlib.contextmanager
def scratch_directory(parent: Path) -> Iterator[Path]:
    parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(parent)
    directory, lock = _create(parent)
    try:
        yield directory
    finally:
        _remove(directory, lock)


def _create(parent: Path) -> tuple[Path, int]:
    while True:
        directory = parent / secrets.token_hex(6)
        lock = _try_lock(_lock_path(directory), os.O_CREAT | os.O_EXCL)
        if lock is not None:
            directory.mkdir()
            return directory, lock


def _remove_abandoned(parent: Path) -> None:
    for path in parent.glob(f"*{_LOCK_SUFFIX}"):
        lock = _try_lock(path)
        if lock is not None:
            _remove(path.with_suffix(""), lock)


def _remove(directory: Path, lock: int) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    _lock_path(directory).unlink(missing_ok=True)
    os.close(lock)


def _lock_path(directory: Path) -> Path:
    return directory.with_suffix(_LOCK_SUFFIX)


def _try_lock(path: Path, flags: int = 0) -> int | None:
    """Open and lock the file; return None if another process holds it."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file
