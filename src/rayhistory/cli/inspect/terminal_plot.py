"""A plot of series in a terminal: one letter per series, values to the left, times below."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

Values = Sequence[float | None]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
_LABEL_WIDTH = 10


def plot(times_ms: Sequence[int], series: Sequence[Values], width: int, height: int) -> list[str]:
    """Return the lines of a plot of this size. Series beyond the 26th are left out."""
    numbers = [value for values in series for value in values if value is not None and math.isfinite(value)]
    if not numbers or not times_ms:
        return ["no data"]
    low, high = min(*numbers, 0.0), max(numbers)
    columns = max(10, width - _LABEL_WIDTH - 2)
    cells = [[" "] * columns for _ in range(height)]
    for letter, values in zip(LETTERS, series, strict=False):
        for column, value in enumerate(_resampled(values, columns)):
            if value is not None and math.isfinite(value):
                cells[_row(value, low, high, height)][column] = letter
    lines = [f"{_label(row, low, high, height):>{_LABEL_WIDTH}} ┤{''.join(line)}" for row, line in enumerate(cells)]
    lines.append(" " * _LABEL_WIDTH + " └" + "─" * columns)
    first, last = _time(times_ms[0]), _time(times_ms[-1])
    lines.append(" " * (_LABEL_WIDTH + 2) + first + " " * max(1, columns - len(first) - len(last)) + last)
    return [line.rstrip() for line in lines]


def _resampled(values: Values, columns: int) -> list[float | None]:
    """Return one value per column: the last value in its time range."""
    found: list[float | None] = [None] * columns
    for position, value in enumerate(values):
        if value is not None:
            found[min(columns - 1, position * columns // len(values))] = value
    return found


def _row(value: float, low: float, high: float, height: int) -> int:
    share = (value - low) / (high - low) if high > low else 0.0
    return height - 1 - round(share * (height - 1))


def _label(row: int, low: float, high: float, height: int) -> str:
    """Return the value that is shown beside a row of the plot: beside every fourth row, the first and the last."""
    if row % 4 and row != height - 1:
        return ""
    return f"{high - (high - low) * row / max(1, height - 1):.4g}"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%m-%d %H:%M:%S")
