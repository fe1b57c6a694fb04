"""Small disks, full disks, torn files."""

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
    """A file system of its own in memory; None where none can be mounted."""
    place = Path(tempfile.mkdtemp(prefix="rhd"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        place.rmdir()
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)
        shutil.rmtree(place, ignore_errors=True)


def fill(path: Path) -> None:
    """Write until no byte more goes in, whoever else writes there at the same time."""
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass


def used(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(folder, name).stat().st_size
    return total


_torn: set[Path] = set()


def tear(spool: Path, dice: random.Random) -> None:
    """As after a power failure: the file that was written last has half a record, or zeros, at its end; but once."""
    files = sorted(spool.rglob("*.wal"), key=lambda path: path.stat().st_mtime_ns)
    if files and files[-1] not in _torn and dice.random() < 0.5:
        _torn.add(files[-1])
        header = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x1a\0RH"
        with contextlib.suppress(OSError), files[-1].open("ab") as file:  # the disk may be full as well
            file.write(dice.choice([header[: dice.randrange(1, len(header))], b"\0" * dice.randrange(1, 5000)]))
