"""Small file systems, full disks and torn writes."""

import contextlib
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def small_disk(size: str) -> Iterator[Path | None]:
    """Mount a tmpfs of the given size; None where mounting is not permitted."""
    directory = Path(tempfile.mkdtemp(prefix="rhd"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(directory)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        directory.rmdir()
        yield None
        return
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=False)
        shutil.rmtree(directory, ignore_errors=True)


def fill_disk(path: Path) -> None:
    """Append until the disk is full."""
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass


def used_bytes(directory: Path) -> int:
    """Total size of the files below a directory."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(folder, name).stat().st_size
    return total


_torn: set[Path] = set()


def write_torn_tail(spool: Path, rng: random.Random) -> None:
    """Simulate a power failure: half a record, or zeros, at the end of the newest segment. Once per segment."""
    files = sorted(spool.rglob("*.wal"), key=lambda path: path.stat().st_mtime_ns)
    if files and files[-1] not in _torn and rng.random() < 0.5:
        _torn.add(files[-1])
        header = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x1a\0RH"
        with contextlib.suppress(OSError), files[-1].open("ab") as file:  # the disk may be full
            file.write(rng.choice([header[: rng.randrange(1, len(header))], b"\0" * rng.randrange(1, 5000)]))
