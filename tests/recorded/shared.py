"""Recordings that all worker processes of a test run share."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def recordings_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of recordings: RAYHISTORY_TEST_RECORDING keeps them for the next runs."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    return Path(os.environ.get("RAYHISTORY_TEST_RECORDING") or shared / "recordings")


def record_if_missing(directory: Path, complete: str, record: Callable[[Path], object]) -> None:
    """Record into the directory unless its file `complete` exists; other workers wait for the recording."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / complete).exists():
            record(directory)
