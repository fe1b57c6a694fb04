"""kill -9 again and again under load, with a store and a disk that fail too.

RAYHISTORY_KILLS says how often (5; `make test-faults`: 50), RAYHISTORY_SEED makes it another day:

    RAYHISTORY_SEED=123 RAYHISTORY_KILLS=50 python -m pytest tests/faults/test_kill.py
"""

import os
import random
import time

import pytest

from faults.disks import tear
from faults.verdict import folded_tasks, judge
from faults.victim import Sender, Victim

KILLS = int(os.environ.get("RAYHISTORY_KILLS", "5"))
SEED = int(os.environ.get("RAYHISTORY_SEED") or 15551)


@pytest.mark.parametrize("faults", ["none", "store and disk"])
def test_everything_acknowledged_is_in_the_store_once(faults: str) -> None:
    """Whenever it was killed: while it wrote, rotated, uploaded, deleted, started or ended."""
    dice = random.Random(f"{SEED} {faults}")
    print(f"RAYHISTORY_SEED={SEED}")
    bad_day = {"FAULT_SEED": str(SEED), "FAULT_STORE": "0.3", "FAULT_DISK": "0.02"} if faults != "none" else {}
    flags = ("--role=Head", "--event-rotation-interval=300ms", "--event-max-file-size-mb=1", "--event-max-disk-mb=400")
    with Victim(*flags, **bad_day) as victim:
        victim.start()
        with Sender(victim.port, SEED) as sender:
            for _ in range(KILLS):
                time.sleep(dice.uniform(0.0, 1.5))
                victim.kill()
                tear(victim.spool, dice)
                victim.start()
            time.sleep(1.0)
        victim.recover()
        assert victim.end() == 0
        verdict = judge(victim.store, sender.acked)
        assert sender.acked
        assert not verdict.missing, f"seed {SEED}: {len(verdict.missing)} of {len(sender.acked)} are lost"
        assert not verdict.twice, f"seed {SEED}: {len(verdict.twice)} are there twice"
        assert (verdict.received, verdict.claimed, verdict.dropped) == (
            verdict.stored.total(),
            verdict.stored.total(),
            0,
        )
        assert not list(victim.spool.rglob("*.wal"))
        shown = folded_tasks(victim.store)
        assert sorted(shown) == sorted(verdict.tasks), f"seed {SEED}: the fold shows something else"
