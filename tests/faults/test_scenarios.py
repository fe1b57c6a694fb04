"""A dozen scenarios with fixed seeds; `make test-faults` runs two hundred.

RAYHISTORY_SEED=123 python -m pytest tests/faults/test_scenarios.py
"""

import os
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from faults.campaign import Campaign
from faults.fault_schedule import Outcome

SEEDS = [int(seed) for seed in (os.environ.get("RAYHISTORY_SEED") or "11 17 32 36 37 43 45 74 80 150 168 194").split()]


@pytest.fixture(scope="module")
def scenarios(request: pytest.FixtureRequest) -> "Iterator[dict[int, Future[Outcome]]]":
    """The selected scenarios, two of them running at a time."""
    items = [item for item in request.session.items if item.path == request.path]
    seeds = [int(str(item.callspec.params["seed"])) for item in items if isinstance(item, pytest.Function)]
    with Campaign() as campaign:
        yield {seed: campaign.submit(seed) for seed in seeds}


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_or_duplicated(scenarios: "dict[int, Future[Outcome]]", seed: int) -> None:
    outcome = scenarios[seed].result()
    assert not outcome.problems, outcome.line()
    assert outcome.events
    assert outcome.log_bytes
    if outcome.skipped:
        pytest.skip(f"verified without some faults: {'; '.join(sorted(outcome.skipped))}")
