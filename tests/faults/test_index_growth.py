"""An index that grows while folds are killed and files are lost; `make test-faults` runs a hundred seeds.

RAYHISTORY_SEED=123 python -m pytest tests/faults/test_index_growth.py
"""

import os

import pytest

from faults.growth_campaign import run_scenario

SEEDS = [int(seed) for seed in (os.environ.get("RAYHISTORY_SEED") or "18").split()]


@pytest.mark.parametrize("seed", SEEDS)
def test_index_equals_one_fold_after_kills_and_lost_files(seed: int) -> None:
    outcome = run_scenario(seed)
    assert not outcome.problems, outcome.line()
    assert outcome.counts["parts"]
