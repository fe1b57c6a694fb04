"""Repeated kill -9 under load, also with store and disk faults.

RAYHISTORY_KILLS is the number of kills (5; `make test-faults`: 50), RAYHISTORY_SEED changes their times:

    RAYHISTORY_SEED=123 RAYHISTORY_KILLS=50 python -m pytest tests/faults/test_kill.py
"""

import os
import random
import time

import pytest

from faults.collector_under_test import CollectorUnderTest, Sender
from faults.disks import write_torn_tail
from faults.stored_state import index_and_read_tasks, read_state

KILLS = int(os.environ.get("RAYHISTORY_KILLS", "5"))
SEED = int(os.environ.get("RAYHISTORY_SEED") or 15551)


@pytest.mark.parametrize("faults", ["none", "store and disk"])
def test_acked_events_are_stored_once_after_kills(faults: str) -> None:
    """The collector is killed while it writes, rotates, uploads, deletes, starts or ends."""
    rng = random.Random(f"{SEED} {faults}")
    print(f"RAYHISTORY_SEED={SEED}")
    environment = {"FAULT_SEED": str(SEED), "FAULT_STORE": "0.3", "FAULT_DISK": "0.02"} if faults != "none" else {}
    flags = ("--role=Head", "--event-rotation-interval=300ms", "--event-max-file-size-mb=1", "--event-max-disk-mb=400")
    with CollectorUnderTest(*flags, spool=None, **environment) as collector:
        collector.start()
        with Sender(collector.port, SEED) as sender:
            for _ in range(KILLS):
                time.sleep(rng.uniform(0.0, 1.5))
                collector.kill()
                write_torn_tail(collector.spool, rng)
                collector.start()
            time.sleep(1.0)
        collector.recover()
        assert collector.end() == 0
        state = read_state(collector.store, sender.acked)
        assert sender.acked
        assert not state.missing, f"seed {SEED}: {len(state.missing)} of {len(sender.acked)} events are lost"
        assert not state.duplicates, f"seed {SEED}: {len(state.duplicates)} events are stored twice"
        assert (state.received, state.sealed_as_stored, state.dropped) == (
            state.event_counts.total(),
            state.event_counts.total(),
            0,
        )
        assert not collector.spooled()
        indexed = index_and_read_tasks(collector.store)
        assert sorted(indexed) == sorted(state.tasks), f"seed {SEED}: the index differs"
