"""Replicas that compact and notify at once, killed at any moment; `make test-faults` runs two hundred seeds.

RAYHISTORY_SEED=123 python -m pytest tests/faults/test_run_replicas.py
"""

import os

import pytest

from faults.run_campaign import run_scenario

SEEDS = [int(seed) for seed in (os.environ.get("RAYHISTORY_SEED") or "2 4").split()]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_summary_and_no_event_is_lost_when_replicas_are_killed(seed: int) -> None:
    outcome = run_scenario(seed)
    assert not outcome.problems, outcome.line()
    assert outcome.counts["summaries"]
    assert outcome.counts["events"]
