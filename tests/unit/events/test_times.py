"""Parsing of Ray's times."""

import pytest

from rayhistory.events.bulk_times import parse_all
from rayhistory.events.times import parse_ns


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-15T19:18:40Z", 1794770320_000000000),
        ("2026-11-15T19:18:40.1Z", 1794770320_100000000),
        ("2026-11-15T19:18:40.151Z", 1794770320_151000000),
        ("2026-11-15T19:18:40.151619Z", 1794770320_151619000),
        ("2026-11-15T19:18:40.151619287Z", 1794770320_151619287),
        ("2026-11-15T20:18:40+01:00", 1794770320_000000000),
        ("1969-12-31T23:59:59.5Z", -500000000),
        ("2026-11-15T19:18:40", None),
        ("2026-11-15T19:18:40.1_0Z", None),
        ("99999-01-01T00:00:00Z", None),
        ("9999-12-31T23:59:59.999999999Z", None),
        ("2262-04-11T23:47:16.854775807Z", None),
        ("2016-12-31T23:59:60.000000000Z", None),
        ("yesterday", None),
        ("", None),
        (7, None),
        (None, None),
    ],
)
def test_valid_times_are_parsed_to_the_nanosecond(text: object, expected: int | None) -> None:
    assert parse_ns(text) == expected
    if isinstance(text, str):
        assert list(parse_all([text, "2026-11-15T19:18:40.000000000Z"])) == [expected, 1794770320_000000000]
