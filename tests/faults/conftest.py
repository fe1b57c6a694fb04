"""Fixtures for fault tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.disks import small_disk


@pytest.fixture
def disk(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A mounted file system of the parametrized size."""
    with small_disk(request.param) as directory:
        if directory is None:
            pytest.skip("cannot mount a small file system here")
        yield directory
