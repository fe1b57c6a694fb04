"""A dozen bad days, always the same ones; `make test-faults` lives two hundred.

RAYHISTORY_SEED=123 python -m pytest tests/faults/test_days.py
"""

import os
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from faults.campaign import Campaign
from faults.plan import Outcome

SEEDS = [int(seed) for seed in (os.environ.get("RAYHISTORY_SEED") or "11 17 32 36 37 43 45 74 80 150 168 194").split()]


@pytest.fixture(scope="module")
def days(request: pytest.FixtureRequest) -> "Iterator[dict[int, Future[Outcome]]]":
    """Two are lived at the same time, while the tests wait for one after the other."""
    here = [item for item in request.session.items if item.path == request.path]
    wanted = [item.callspec.params["seed"] for item in here if isinstance(item, pytest.Function)]
    with Campaign() as campaign:
        yield {seed: campaign.begin(seed) for seed in wanted}


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_and_nothing_is_there_twice(days: "dict[int, Future[Outcome]]", seed: int) -> None:
    """Whatever the seed does to collectors, disks, clocks, stores, Ray and the server: see `day`."""
    outcome = days[seed].result()
    assert not outcome.problems, outcome.line()
    assert outcome.events
    assert outcome.log_bytes
