"""Failing and slow disks and wrong clocks for a process that knows nothing of it: see `bad_disk.c`."""

import ctypes
import functools
import mmap
import os
import shutil
import subprocess
import tempfile
from pathlib import Path


class _Control(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("write_fails", "write_short", "sync_fails", "slow", "slow_ms", "unused")),
        ("clock_seconds", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("failed_writes", "short_writes", "failed_syncs", "slow_calls")),
    )


@functools.cache
def library() -> Path | None:
    """Compiled once; None where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    made = Path(tempfile.mkdtemp(prefix="rhl")) / "bad_disk.so"
    source = Path(__file__).with_name("bad_disk.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
    return made


class BadDisk:
    """One process's trouble; shares are of a thousand calls."""

    def __init__(self, control: Path, under: Path) -> None:
        control.write_bytes(bytes(ctypes.sizeof(_Control)))
        with control.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 0)
        self._control = _Control.from_buffer(self._shared)
        self.environment = {
            "LD_PRELOAD": str(library()),
            "BAD_DISK_CONTROL": str(control),
            "BAD_DISK_UNDER": f"{os.path.realpath(under)}/",
        }

    def be(self, *, write_fails: int = 0, write_short: int = 0, sync_fails: int = 0, slow: int = 0) -> None:
        control = self._control
        control.slow_ms = 60
        control.write_fails, control.write_short = write_fails, write_short
        control.sync_fails, control.slow = sync_fails, slow

    def set_clock(self, seconds: int) -> None:
        self._control.clock_seconds = seconds

    def counts(self) -> dict[str, int]:
        names = ("failed_writes", "short_writes", "failed_syncs", "slow_calls")
        return {name.replace("_", " "): getattr(self._control, name) for name in names}
