"""Extensions are listed as few ranges, and none is left out."""

from hypothesis import given
from hypothesis import strategies as st

from rayhistory.index.batch_ranges import join_ranges, overlaps

RANGES = st.lists(st.tuples(st.integers(1, 10_000), st.integers(0, 3)).map(lambda pair: (pair[0], sum(pair))))


@given(RANGES)
def test_joined_ranges_are_few_and_cover_all(ranges: list[tuple[int, int]]) -> None:
    joined = join_ranges(ranges)
    assert len(joined) <= 32
    assert joined == sorted(joined)
    assert all(overlaps(joined, batch, batch) for first, last in ranges for batch in range(first, last + 1))


def test_neighbours_become_one_range() -> None:
    assert join_ranges([(5, 5), (1, 2), (3, 3), (2, 2)]) == [(1, 3), (5, 5)]


def test_smallest_gaps_are_closed_first() -> None:
    joined = join_ranges([(1, 1), (3, 3), *((number * 100, number * 100) for number in range(1, 32))])
    assert joined[0] == (1, 3)
    assert not overlaps(joined, 4, 99)
