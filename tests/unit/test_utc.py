"""One parser for points in time: milliseconds and ISO 8601, UTC unless a zone is given."""

import pytest

from rayhistory.utc import parse_utc_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1794770288000", 1794770288000),
        ("0", 0),
        ("2026-11-15T19:18:08Z", 1794770288000),
        ("2026-11-15T19:18:08", 1794770288000),
        ("2026-11-15 19:18:08", 1794770288000),
        ("2026-11-15T20:18:08+01:00", 1794770288000),
        ("2026-11-15T19:18:08.250Z", 1794770288250),
        ("2026-11-15", 1794700800000),
        ("20261115", 1794700800000),
        ("1969-12-31T23:59:59Z", -1000),
    ],
)
def test_time_is_parsed(text: str, ms: int) -> None:
    assert parse_utc_ms(text) == ms


@pytest.mark.parametrize("text", ["", "soon", "-1", "2026-13-01", "99999999", "1" * 16, "٣"])
def test_anything_else_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_utc_ms(text)
