"""Rows of texts, against a reference that computes one 5-gram after another."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayhistory.search import grams
from rayhistory.search.gram_query import MAX_RANGES, required_rows
from rayhistory.search.grams import GRAM_BYTES, MIN_TEXT_BYTES, ROWS, literal_rows, read_rows

TEXTS = st.lists(
    st.one_of(
        st.sampled_from([b"Error", b"error_2", b"ab", b"a" * 9, b"deadbeef12345678", b"[10:00:01,123]"]),
        st.text("abz019_Kﬀé", max_size=20).map(str.encode),
        st.binary(max_size=5),
    ),
    max_size=60,
).map(b" \n".join)


def row_of(gram: bytes) -> int:
    folded = [byte | 0x20 for byte in gram]
    row = sum((byte + 9 * (byte >> 6)) % 16 << 4 * place for place, byte in enumerate(folded))
    return row + (1 << 20 if all(byte & 0x40 for byte in gram[2:]) else 0)


def rows_of(text: bytes, start: int, end: int) -> set[int]:
    """Return the rows of a text, as they are stored."""
    column = np.zeros(ROWS, np.uint8)
    read_rows(text, start, end).add_to(column, 3)
    assert set(np.unique(column).tolist()) <= {0, 8}
    return set(np.flatnonzero(column).tolist())


@pytest.mark.slow
@pytest.mark.parametrize("table_bytes", [0, 1 << 30])
@settings(max_examples=100, deadline=None)
@given(text=TEXTS, start=st.integers(0, 10), end=st.integers(0, 10))
def test_rows_are_those_of_all_5_grams(text: bytes, start: int, end: int, table_bytes: int) -> None:
    end = max(start, len(text) - end)
    limits = grams._CHUNK_BYTES, grams._MIN_TABLE_BYTES
    grams._CHUNK_BYTES, grams._MIN_TABLE_BYTES = 40, table_bytes
    try:
        found = rows_of(text, start, end)
    finally:
        grams._CHUNK_BYTES, grams._MIN_TABLE_BYTES = limits
    part = b"\0\0" + text[start:end]
    whole = range(len(part) - GRAM_BYTES + 1) if len(part) - 2 >= MIN_TEXT_BYTES else ()
    assert found == {row_of(part[place : place + GRAM_BYTES]) for place in whole}


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=8), st.one_of(TEXTS, st.binary(max_size=6)), st.binary(max_size=8))
def test_a_text_has_the_rows_of_all_its_parts(before: bytes, part: bytes, after: bytes) -> None:
    text = before + part.swapcase() + after
    rows = rows_of(text, 0, len(text))
    ranges = literal_rows(part)
    assert bool(ranges) == (len(part) >= MIN_TEXT_BYTES)
    for first, stop in ranges:
        assert not rows.isdisjoint(range(first, stop))


def test_texts_of_three_and_four_bytes_have_one_range() -> None:
    assert [each.stop - each.start for each in literal_rows(b"OOM")] == [256]
    assert [each.stop - each.start for each in literal_rows(b"oomk")] == [16]
    assert [each.stop - each.start for each in literal_rows(b"oomkill")] == [1, 1, 1]
    assert literal_rows(b"om") == []


def test_hexadecimal_numbers_of_five_digits_have_distinct_rows() -> None:
    texts = [b"%05x" % number for number in range(1 << 20)]
    assert len({literal_rows(text)[0] for text in texts[::97]}) == len(texts[::97])


def test_case_is_ignored_and_other_bytes_are_not() -> None:
    assert literal_rows(b"OutOfMemory") == literal_rows(b"outofmemory")
    assert literal_rows(b"deadbeef") != literal_rows(b"deadbee0")


def test_a_long_text_requires_few_rows_from_all_its_parts() -> None:
    text = "".join(f"word{number}" for number in range(100))
    every = literal_rows(text.encode())
    required = required_rows(text, case=True)
    assert required
    assert len(required.ranges) == MAX_RANGES
    assert required.ranges[:1] == every[:1]
    assert set(required.ranges) <= set(every)
    assert every.index(required.ranges[-1]) > len(every) * 0.8


@pytest.mark.parametrize(
    ("text", "case", "ranges", "odd_case"),
    [("ab", True, 0, False), ("über", False, 1, False), ("üb", False, 0, False), ("üb", True, 1, False),
     ("Kelvin", False, 2, True), ("Kelvin", True, 2, False), ("éabcéabcdeé", False, 2, False)],
)  # fmt: skip
def test_required_rows_without_case_are_those_of_ascii_parts(
    text: str, case: bool, ranges: int, odd_case: bool
) -> None:
    required = required_rows(text, case=case)
    assert (len(required.ranges) if required else 0) == ranges
    assert (required.or_odd_case if required else False) == odd_case
