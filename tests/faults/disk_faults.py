"""Failing disks, slow disks and clock jumps, injected into a process through `disk_faults.c`."""

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
    """Compile the preload library once; None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    target = Path(tempfile.mkdtemp(prefix="rhl")) / "disk_faults.so"
    source = Path(__file__).with_name("disk_faults.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", target, source, "-ldl"], check=True)
    return target


class DiskFaults:
    """Disk and clock faults of one process. Rates are per thousand calls."""

    def __init__(self, control: Path, root: Path) -> None:
        control.write_bytes(bytes(ctypes.sizeof(_Control)))
        with control.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 0)
        self._control = _Control.from_buffer(self._shared)
        self.environment = {
            "LD_PRELOAD": str(library()),
            "DISK_FAULTS_CONTROL": str(control),
            "DISK_FAULTS_ROOT": f"{os.path.realpath(root)}/",
        }

    def inject(self, *, write_fails: int = 0, write_short: int = 0, sync_fails: int = 0, slow: int = 0) -> None:
        control = self._control
        control.slow_ms = 60
        control.write_fails, control.write_short = write_fails, write_short
        control.sync_fails, control.slow = sync_fails, slow

    def clear(self) -> None:
        """Stop all disk faults; the clock keeps its offset."""
        self.inject()

    def set_clock(self, seconds: int) -> None:
        self._control.clock_seconds = seconds

    def counts(self) -> dict[str, int]:
        names = ("failed_writes", "short_writes", "failed_syncs", "slow_calls")
        return {name.replace("_", " "): getattr(self._control, name) for name in names}
