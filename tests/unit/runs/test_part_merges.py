"""Few parts for readers, few writes per row."""

import calendar
import random

import pytest

from rayhistory.runs.part_merges import common_period, mergeable_parts
from rayhistory.runs.run_manifest import RunPart
from rayhistory.runs.run_parts import MAX_PART_ROWS

IN_NOVEMBER = float(calendar.timegm((2026, 11, 18, 0, 0, 0)))
IN_MARCH = float(calendar.timegm((2027, 3, 18, 0, 0, 0)))


def parts(count: int, rows: int, period: str = "2026-11-01") -> list[RunPart]:
    return [RunPart(f"{period}-{rows}-{number}", period, rows, rows * 500) for number in range(count)]


def test_parts_of_a_similar_size_are_merged() -> None:
    small, large = parts(4, 64), parts(3, 2000)
    assert mergeable_parts([*large, *small], IN_NOVEMBER) == [small]
    assert mergeable_parts([*large, *small[:3]], IN_NOVEMBER) == []


def test_days_of_a_month_are_merged_and_months_are_not() -> None:
    november, december = [*parts(2, 64), *parts(2, 64, "2026-11-02")], parts(4, 64, "2026-12-24")
    assert mergeable_parts([*november, *december], IN_NOVEMBER) == [november, december]


def test_month_that_is_over_has_few_parts() -> None:
    assert mergeable_parts([*parts(1, 1000), *parts(9, 60)], IN_MARCH) == [[*parts(1, 1000), *parts(9, 60)]]
    assert mergeable_parts([*parts(1, 1000), *parts(1, 60)], IN_MARCH) == []


def test_merged_parts_stay_bounded() -> None:
    groups = mergeable_parts(parts(40, 1000), IN_NOVEMBER)
    assert groups
    assert all(sum(part.rows for part in group) <= MAX_PART_ROWS for group in groups)


@pytest.mark.parametrize("now", [IN_NOVEMBER, IN_MARCH])
@pytest.mark.parametrize(("batch", "parts", "writes"), [((64, 64), 16, 6), ((1, 64), 16, 7), ((1, 3), 24, 10)])
def test_any_stream_of_batches_leaves_few_parts_and_writes_rows_a_few_times(
    batch: tuple[int, int], parts: int, writes: int, now: float
) -> None:
    """Both follow the logarithm of the largest part over a batch."""
    chance = random.Random(1)
    table: list[RunPart] = []
    added = written = most = 0
    while added < 10_000:
        new = RunPart(str(written), "2026-11-01", chance.randint(*batch), 500)
        for group in mergeable_parts(table, now):
            merged = RunPart(f"m{written}", common_period(part.period for part in group), sum(p.rows for p in group), 1)
            table = [part for part in table if part not in group] + [merged]
            written += merged.rows
        table.append(new)
        added, written, most = added + new.rows, written + new.rows, max(most, len(table))
    assert sum(part.rows for part in table) == added
    assert most <= parts
    assert written / added <= writes


def test_common_period_is_a_day_or_its_month() -> None:
    assert common_period(["2026-11-01", "2026-11-01"]) == "2026-11-01"
    assert common_period(["2026-11-02", "2026-11-01"]) == "2026-11"
    assert common_period(["2026-11", "2026-11-01"]) == "2026-11"
