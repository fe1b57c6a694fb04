"""Full disks, read-only disks and the disk budget."""

import subprocess
import time
from pathlib import Path

import pytest

from faults.collector_under_test import CollectorUnderTest, Sender
from faults.disks import fill_disk, used_bytes
from faults.stored_state import read_state


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


@pytest.mark.parametrize("disk", ["3m"], indirect=True)
def test_events_are_refused_while_the_disk_is_full(disk: Path) -> None:
    """Events get 503 while the disk is full, then 200 again, and no acked event is lost."""
    with CollectorUnderTest("--event-rotation-interval=500ms", spool=disk / "spool") as collector:
        filler = disk / "filler"
        filler.touch()
        collector.start()
        with Sender(collector.port, 1) as sender:
            collector.wait_until(lambda: sender.statuses.get(200, 0) > 20)
            for refused in (1, 3, 5):  # uploads in between free space, which the filler takes again
                fill_disk(filler)
                collector.wait_until(lambda refused=refused: sender.statuses.get(503, 0) >= refused)
            filler.unlink()
            accepted = sender.statuses[200]
            collector.wait_until(lambda: sender.statuses[200] > accepted + 20)
            assert 'refused_total{reason="spool"}' in collector.get("/metrics")[1]
        assert collector.end() == 0
        state = read_state(collector.store, sender.acked)
        assert not state.missing
        assert not state.duplicates


@pytest.mark.parametrize("disk", ["8m"], indirect=True)
def test_collector_starts_with_a_read_only_spool_and_recovers(disk: Path) -> None:
    """The collector is not ready and refuses events until the disk is writable."""
    with CollectorUnderTest(spool=disk / "spool") as collector:
        remount(disk, "ro")
        collector.start()
        assert collector.status("/readyz") == 503
        with Sender(collector.port, 2, threads=1) as sender:
            collector.wait_until(lambda: sender.statuses.get(503, 0) > 2)
        assert not sender.acked
        remount(disk, "rw")
        collector.wait_until(lambda: collector.status("/readyz") == 200)
        with Sender(collector.port, 3, threads=1) as sender:
            collector.wait_until(lambda: sender.statuses.get(200, 0) > 5)
        assert collector.end() == 0
        assert not read_state(collector.store, sender.acked).missing


def test_disk_budget_holds_during_a_store_outage() -> None:
    """Segments, upload files and quarantined data together stay within the budget."""
    budget = 2 * 10**6
    flags = ("--event-max-disk-mb=2", "--event-rotation-interval=200ms")
    with CollectorUnderTest(*flags, FAULT_STORE="1.0", FAULT_SEED="1") as collector:
        collector.start()
        max_bytes = 0
        with Sender(collector.port, 4, max_batch=400) as sender:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline and sender.statuses.get(503, 0) < 30:
                max_bytes = max(max_bytes, used_bytes(collector.spool))
                time.sleep(0.01)
        assert sender.statuses.get(503, 0) >= 30
        assert max_bytes <= budget
