"""Formats of durations, ages, sizes and names."""

import pytest

from rayhistory.web.format import (
    code_spans,
    format_age,
    format_duration,
    sentence_case,
    short_session_name,
)

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
NOW = 1_794_777_600_000


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        (0, "<1s"),
        (999, "<1s"),
        (45 * SECOND, "45s"),
        (12 * MINUTE + 5 * SECOND, "12m 5s"),
        (3 * HOUR + 12 * MINUTE + 59 * SECOND, "3h 12m"),
        (HOUR + 5 * SECOND, "1h"),
        (40 * DAY + 2 * HOUR, "40d 2h"),
    ],
)
def test_durations_have_their_two_largest_units(milliseconds: int, expected: str) -> None:
    assert format_duration(milliseconds) == expected


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        (-5 * MINUTE, "just now"),
        (59 * SECOND, "just now"),
        (MINUTE, "1 min ago"),
        (23 * HOUR, "23 h ago"),
        (59 * DAY, "59 d ago"),
        (90 * DAY, "3 mo ago"),
        (800 * DAY, "2 y ago"),
    ],
)
def test_ages_have_one_unit(age: int, expected: str) -> None:
    assert format_age(NOW - age, NOW) == expected


def test_other_session_names_are_shortened_in_the_middle() -> None:
    assert short_session_name("session_1") == "session_1"
    assert short_session_name("my-own-name-that-is-long") == "my-own-nam…t-is-long"


def test_unpaired_backtick_is_kept() -> None:
    assert str(code_spans("a `b <i>")) == "a `b &lt;i&gt;"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the store is empty", "The store is empty"),
        ("`x` is unknown", "`x` is unknown"),
        ("a/b is gone", "a/b is gone"),
        ("", ""),
    ],
)
def test_error_messages_start_with_a_capital_on_pages(text: str, expected: str) -> None:
    assert sentence_case(text) == expected
