"""Choose the parts of the run table to merge, so that readers need few parts and rows are rewritten rarely.

Parts of one month are merged when the smaller ones together are large enough. In the current month, a row is rewritten
only into a part that has at least four times as many rows as the old one. So this happens only a few times.
"""

import calendar
import time
from collections.abc import Iterable

from rayhistory.runs.run_manifest import RunPart
from rayhistory.runs.run_parts import MAX_PART_BYTES, MAX_PART_ROWS

_GROWTH = 3.0
"""A part is merged with all smaller ones if these together have this many times as many rows."""
_GROWTH_OF_PAST_MONTHS = 0.5
"""The same limit for past months. Little is added to them, and every reader reads all of their parts."""
_MONTH_S, _MONTH_IS_OVER_AFTER_S = 31 * 86_400.0, 2 * 86_400.0


def mergeable_parts(parts: Iterable[RunPart], now: float) -> list[list[RunPart]]:
    """Return groups of parts, each to be replaced by one part."""
    months: dict[str, list[RunPart]] = {}
    for part in parts:
        months.setdefault(part.period[:7], []).append(part)
    return [group for month, of_month in months.items() if (group := _of_month(of_month, _growth(month, now)))]


def _of_month(parts: list[RunPart], growth: float) -> list[RunPart]:
    """Return the smallest parts of a month, up to the last one that is worth merging.

    Return none if there are fewer than two.
    """
    smallest = sorted(parts, key=lambda part: part.rows)
    rows = size = chosen = 0
    for place, part in enumerate(smallest):
        if rows + part.rows > MAX_PART_ROWS or size + part.size > MAX_PART_BYTES // 2:
            break
        if place and rows >= growth * part.rows:
            chosen = place + 1
        rows, size = rows + part.rows, size + part.size
    merged = smallest[:chosen]
    return [part for part in parts if part in merged]


def _growth(month: str, now: float) -> float:
    try:
        start = calendar.timegm(time.strptime(month, "%Y-%m"))
    except (ValueError, OverflowError):
        return _GROWTH_OF_PAST_MONTHS
    return _GROWTH_OF_PAST_MONTHS if now > start + _MONTH_S + _MONTH_IS_OVER_AFTER_S else _GROWTH


def common_period(periods: Iterable[str]) -> str:
    """Return the period of a part merged from parts of one month: the day if it is the same for all, else the month."""
    found = sorted(set(periods))
    return found[0] if len(found) == 1 else found[0][:7]
