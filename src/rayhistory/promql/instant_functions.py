"""Functions of single values: arithmetic and dates. All take and return arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np

from rayhistory.promql.arrays import Floats

_DAY_S = 86_400


def _dates(seconds: Floats) -> Any:
    return np.where(np.isfinite(seconds), np.floor(seconds), 0).astype("datetime64[s]")


def _year(seconds: Floats) -> Floats:
    return np.asarray(_dates(seconds).astype("datetime64[Y]").astype(int) + 1970.0)


def _month(seconds: Floats) -> Floats:
    return np.asarray(_dates(seconds).astype("datetime64[M]").astype(int) % 12 + 1.0)


def _day_of_month(seconds: Floats) -> Floats:
    return _days_since(seconds, "datetime64[M]") + 1


def _day_of_year(seconds: Floats) -> Floats:
    return _days_since(seconds, "datetime64[Y]") + 1


def _days_since(seconds: Floats, start: str) -> Floats:
    """Return the days since the start of the month or year."""
    days = _dates(seconds).astype("datetime64[D]")
    return np.asarray((days - days.astype(start).astype("datetime64[D]")).astype(float))


def _days_in_month(seconds: Floats) -> Floats:
    month = _dates(seconds).astype("datetime64[M]")
    return np.asarray(((month + 1).astype("datetime64[D]") - month.astype("datetime64[D]")).astype(float))


def _day_of_week(seconds: Floats) -> Floats:
    return (np.floor(seconds / _DAY_S) + 4) % 7  # 1970-01-01 was a Thursday


def _hour(seconds: Floats) -> Floats:
    return np.floor(seconds % _DAY_S / 3600)


def _minute(seconds: Floats) -> Floats:
    return np.floor(seconds % 3600 / 60)


def round_to(values: Floats, nearest: Floats) -> Floats:
    """Round to multiples. Ties are rounded up, also for negative numbers."""
    inverse = 1.0 / nearest
    return np.floor(values * inverse + 0.5) / inverse


def clamp(values: Floats, low: Floats, high: Floats) -> Floats:
    clamped = np.maximum(low, np.minimum(high, values))
    return np.where(np.isnan(values), values, clamped)


def _sign(values: Floats) -> Floats:
    return np.where(values < 0, -1.0, np.where(values > 0, 1.0, values))


MATH: dict[str, Callable[[Floats], Floats]] = {
    "abs": np.abs, "ceil": np.ceil, "floor": np.floor, "exp": np.exp, "sqrt": np.sqrt, "ln": np.log,
    "log2": np.log2, "log10": np.log10, "sgn": _sign, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "deg": np.degrees, "rad": np.radians,
}  # fmt: skip

DATES: dict[str, Callable[[Floats], Floats]] = {
    "year": _year, "month": _month, "day_of_month": _day_of_month, "day_of_year": _day_of_year,
    "day_of_week": _day_of_week, "days_in_month": _days_in_month, "hour": _hour, "minute": _minute,
}  # fmt: skip
