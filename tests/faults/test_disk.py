"""Disks that are full, read-only, or lie."""

import subprocess
import time
from pathlib import Path

import pytest

from faults.disks import fill, used
from faults.verdict import judge
from faults.victim import Sender, Victim


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


@pytest.mark.parametrize("disk", ["3m"], indirect=True)
def test_a_full_disk_refuses_and_recovers(disk: Path) -> None:
    """503 while it is full; when there is room again, events are taken again and nothing acknowledged is lost."""
    with Victim("--event-rotation-interval=500ms", spool=disk / "spool") as victim:
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


@pytest.mark.parametrize("disk", ["8m"], indirect=True)
def test_a_read_only_spool_at_the_start_is_waited_for(disk: Path) -> None:
    """It listens, says 503 and that it is not ready; as soon as the disk can be written, it is, without any post."""
    with Victim(spool=disk / "spool") as victim:
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
