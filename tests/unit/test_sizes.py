"""Sizes for people."""

import pytest

from rayhistory.sizes import format_size


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (20 * 1024**3, "20 GiB"),
        (5000 * 1024**5, "5000 PiB"),
    ],
)
def test_sizes_have_one_unit(size: int, expected: str) -> None:
    assert format_size(size) == expected
