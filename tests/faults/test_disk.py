"""Disks that are full, read-only, or lie."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.verdict import judge
from faults.victim import Sender, Victim


@contextlib.contextmanager
def small_disk(size: str) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="rhd"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(directory)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        directory.rmdir()
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=False)
        shutil.rmtree(directory, ignore_errors=True)


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


def fill(path: Path) -> None:
    """Write until no byte more goes in, whoever else writes there at the same time."""
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass


def test_a_full_disk_refuses_and_recovers() -> None:
    """503 while it is full; when there is room again, events are taken again and nothing acknowledged is lost."""
    with small_disk("3m") as disk, Victim("--event-rotation-interval=500ms", spool=disk / "spool") as victim:
        filler = disk / "somebody-elses"
        filler.touch()
        victim.start()
        with Sender(victim.port, 1) as sender:
            victim.until(lambda: sender.statuses.get(200, 0) > 20)
            for refused in (1, 3, 5):  # what is shipped in between makes room, which somebody else takes again
                fill(filler)
                victim.until(lambda number=refused: sender.statuses.get(503, 0) >= number)
            filler.unlink()
            taken = sender.statuses[200]
            victim.until(lambda: sender.statuses[200] > taken + 20)
            assert 'refused_total{reason="spool"}' in victim.get("/metrics")[1]
        assert victim.end() == 0
        verdict = judge(victim.store, sender.acked)
        assert not verdict.missing
        assert not verdict.twice


def test_a_read_only_spool_at_the_start_is_waited_for() -> None:
    """It listens, says 503 and that it is not ready; as soon as the disk can be written, it is, without any post."""
    with small_disk("8m") as disk, Victim(spool=disk / "spool") as victim:
        remount(disk, "ro")
        victim.start()
        assert victim.status("/readyz") == 503
        with Sender(victim.port, 2, threads=1) as sender:
            victim.until(lambda: sender.statuses.get(503, 0) > 2)
        assert not sender.acked
        remount(disk, "rw")
        victim.until(lambda: victim.status("/readyz") == 200)
        with Sender(victim.port, 3, threads=1) as sender:
            victim.until(lambda: sender.statuses.get(200, 0) > 5)
        assert victim.end() == 0
        assert not judge(victim.store, sender.acked).missing


def test_the_disk_budget_is_honoured_while_the_store_is_away() -> None:
    """Segments, files made for uploads and what was set aside together never take more than the budget."""
    budget = 2 * 10**6
    flags = ("--event-max-disk-mb=2", "--event-rotation-interval=200ms")
    with Victim(*flags, FAULT_STORE="1.0", FAULT_SEED="1") as victim:
        victim.start()
        worst = 0
        with Sender(victim.port, 4, largest=400) as sender:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline and sender.statuses.get(503, 0) < 30:
                worst = max(worst, used(victim.spool))
                time.sleep(0.01)
        assert sender.statuses.get(503, 0) >= 30
        assert worst <= budget


def used(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(folder, name).stat().st_size
    return total
