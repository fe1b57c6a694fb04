"""What several of the tests of faults need."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.disks import small_disk


@pytest.fixture
def disk(request: pytest.FixtureRequest) -> Iterator[Path]:
    """As large as the test says."""
    with small_disk(request.param) as place:
        if place is None:
            pytest.skip("no small disk can be mounted here")
        yield place
