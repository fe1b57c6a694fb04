"""Scratch directories that do not outlive their process, however it ends.

Beside each one is a file that its process keeps locked. A lock that can be taken belongs to nobody any more: whoever
makes the next scratch directory removes what was left.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

_LOCK = ".lock"


@contextlib.contextmanager
def scratch_directory(parent: Path) -> Iterator[Path]:
    parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(parent)
    directory, lock = _make(parent)
    try:
        yield directory
    finally:
        _remove(directory, lock)


def _make(parent: Path) -> tuple[Path, int]:
    while True:
        directory = parent / secrets.token_hex(6)
        lock = _locked(_lock_of(directory), os.O_CREAT | os.O_EXCL)
        if lock is not None:
            directory.mkdir()
            return directory, lock


def _remove_abandoned(parent: Path) -> None:
    for path in parent.glob(f"*{_LOCK}"):
        lock = _locked(path)
        if lock is not None:
            _remove(path.with_suffix(""), lock)


def _remove(directory: Path, lock: int) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    _lock_of(directory).unlink(missing_ok=True)
    os.close(lock)


def _lock_of(directory: Path) -> Path:
    return directory.with_suffix(_LOCK)


def _locked(path: Path, flags: int = 0) -> int | None:
    """The file, locked; None when somebody else has it."""
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
