"""Functions of range vectors, each computed for all series and windows of a series set at once."""

import math
from collections.abc import Callable

import numpy as np

from rayhistory.promql.arrays import Floats, Mask
from rayhistory.promql.query_errors import EvaluationFailed
from rayhistory.promql.selectors import Windows

Result = tuple[Floats, Mask]
Kernel = Callable[[Windows], Result]
ParameterKernel = Callable[[Windows, list[Floats]], Result]
"""A function with scalar parameters; each parameter has a value per step."""

_EXACT_SUM_LIMIT = 1e15
"""Above this value, sums are compensated, as in Prometheus, because plain sums of floats may lose whole numbers."""


def _extrapolated(windows: Windows, *, is_counter: bool, is_rate: bool) -> Result:
    """Extrapolate the change between the first and last sample to the whole window, as Prometheus does."""
    first, last = windows.first, windows.last
    start_value = windows.take(first)
    change = windows.take(last) - start_value
    if is_counter:
        change = change + _reset_amounts(windows)
    present = windows.filled(2)
    first_time, last_time = windows.times_at(first), windows.times_at(last)
    with np.errstate(all="ignore"):
        interval = (last_time - first_time) / 1000
        average = interval / (windows.counts - 1)
        to_start = (first_time - (windows.ends - windows.range_ms)) / 1000
        to_end = (windows.ends - last_time) / 1000
        to_start = np.where(to_start >= average * 1.1, average / 2, to_start)
        to_end = np.where(to_end >= average * 1.1, average / 2, to_end)
        if is_counter:  # a counter is not extrapolated below zero
            interval, to_start, to_end = map(windows.expand, (interval, to_start, to_end))
            to_zero = np.where((change > 0) & (start_value >= 0), interval * (start_value / change), np.inf)
            to_start = np.minimum(to_start, to_zero)
        factor = (interval + to_start + to_end) / interval
        if is_rate:
            factor = factor / (windows.range_ms / 1000)
        return change * (factor if is_counter else windows.expand(factor)), present


def _reset_amounts(windows: Windows) -> Floats | float:
    """Return, for each window, what a counter lost by resets: the sum of its values before them."""
    before, after = windows.values[:, :-1], windows.values[:, 1:]
    is_reset = after < before
    if not is_reset.any():
        return 0.0
    lost = np.pad(np.cumsum(np.where(is_reset, before, 0.0), axis=1), ((0, 0), (1, 0)))
    return np.asarray(windows.take(windows.last, lost) - windows.take(windows.first, lost))


def _rate(windows: Windows) -> Result:
    return _extrapolated(windows, is_counter=True, is_rate=True)


def _increase(windows: Windows) -> Result:
    return _extrapolated(windows, is_counter=True, is_rate=False)


def _delta(windows: Windows) -> Result:
    return _extrapolated(windows, is_counter=False, is_rate=False)


def _last_two(windows: Windows) -> tuple[Floats, Floats, Floats]:
    """Return the two last values of each window, and the seconds between them."""
    before = np.maximum(windows.last - 1, 0)
    seconds = (windows.times_at(windows.last) - windows.times_at(before)) / 1000
    return windows.take(before), windows.take(windows.last), windows.expand(seconds)


def _irate(windows: Windows) -> Result:
    before, after, seconds = _last_two(windows)
    with np.errstate(all="ignore"):
        return np.where(after < before, after, after - before) / seconds, windows.filled(2) & (seconds > 0)


def _idelta(windows: Windows) -> Result:
    before, after, _ = _last_two(windows)
    return after - before, windows.filled(2)


def _changes(windows: Windows) -> Result:
    before, after = windows.values[:, :-1], windows.values[:, 1:]
    return _count_pairs(windows, (before != after) & ~(np.isnan(before) & np.isnan(after)))


def _resets(windows: Windows) -> Result:
    return _count_pairs(windows, windows.values[:, 1:] < windows.values[:, :-1])


def _count_pairs(windows: Windows, matching: Mask) -> Result:
    counts = np.pad(np.cumsum(matching, axis=1, dtype=np.float64), ((0, 0), (1, 0)))
    return windows.take(windows.last, counts) - windows.take(windows.first, counts), windows.filled()


def _sum(windows: Windows) -> Result:
    with np.errstate(all="ignore"):
        return _sums(windows), windows.filled()


def _sums(windows: Windows) -> Floats:
    finite = windows.values[np.isfinite(windows.values)]
    if finite.size and np.abs(finite).max() > _EXACT_SUM_LIMIT:
        return _per_window(windows, lambda _, values, __: np.array([exact_sum(row) for row in values]))
    return windows.sums()


def _compensated(total: float, lost: float, value: float) -> tuple[float, float]:
    """Add a value. Return the sum, and the accumulated rounding error (Neumaier's algorithm)."""
    following = total + value
    if math.isinf(following):
        return following, 0.0
    if abs(total) >= abs(value):
        return following, lost + ((total - following) + value)
    return following, lost + ((value - following) + total)


def exact_sum(values: Floats) -> float:
    total = lost = 0.0
    for value in values.tolist():
        total, lost = _compensated(total, lost, value)
    return total if math.isinf(total) else total + lost


def exact_mean(values: Floats) -> float:
    """Return the mean. If the sum is too large for a float, compute it incrementally."""
    total = lost = 0.0
    numbers = values.tolist()
    for count, value in enumerate(numbers, start=1):
        following = _compensated(total, lost, value)
        if count > 1 and math.isinf(following[0]):
            return _incremental_mean(numbers, count - 1, total, lost)
        total, lost = following
    return total / len(numbers) + (0.0 if math.isinf(total) else lost / len(numbers))


def _incremental_mean(numbers: list[float], done: int, total: float, lost: float) -> float:
    mean, lost = total / done, lost / done
    for count, value in enumerate(numbers[done:], start=done + 1):
        share = (count - 1) / count
        mean, lost = _compensated(share * mean, share * lost, value / count)
    return mean if math.isinf(mean) else mean + lost


def _avg(windows: Windows) -> Result:
    finite = windows.values[np.isfinite(windows.values)]
    with np.errstate(all="ignore"):
        if finite.size and np.abs(finite).max() > _EXACT_SUM_LIMIT:
            means = _per_window(windows, lambda _, values, __: np.array([exact_mean(row) for row in values]))
            return means, windows.filled()
        return windows.sums() / windows.expand(windows.counts), windows.filled()


def _min(windows: Windows) -> Result:
    return windows.reduce(np.fmin), windows.filled()


def _max(windows: Windows) -> Result:
    return windows.reduce(np.fmax), windows.filled()


def _count(windows: Windows) -> Result:
    return windows.expand(windows.counts.astype(float)), windows.filled()


def _last(windows: Windows) -> Result:
    return windows.take(windows.last), windows.filled()


def _first(windows: Windows) -> Result:
    return windows.take(windows.first), windows.filled()


def _present(windows: Windows) -> Result:
    return np.ones(windows.filled().shape), windows.filled()


def _time_of_first(windows: Windows) -> Result:
    return windows.expand(windows.times_at(windows.first) / 1000), windows.filled()


def _time_of_last(windows: Windows) -> Result:
    return windows.expand(windows.times_at(windows.last) / 1000), windows.filled()


def _time_of_min(windows: Windows) -> Result:
    return _time_of(windows, lambda values: np.where(np.isnan(values), np.inf, values))


def _time_of_max(windows: Windows) -> Result:
    return _time_of(windows, lambda values: np.where(np.isnan(values), np.inf, -values))


def _time_of(windows: Windows, order: Callable[[Floats], Floats]) -> Result:
    """Return the time of the sample for which `order` is lowest. Among equal samples, the last one counts."""

    def find(times: Floats, values: Floats, _: int) -> Floats:
        lowest = values.shape[1] - 1 - np.argmin(order(values)[:, ::-1], axis=1)
        return np.asarray(times[lowest] / 1000)

    return _per_window(windows, find), windows.filled()


def _per_window(windows: Windows, function: Callable[[Floats, Floats, int], Floats]) -> Floats:
    """Call a function with the times and values of each window that has samples, and the number of its step."""
    results = np.full((len(windows.labels), windows.ends.size), np.nan)
    for rows, step, positions, clock in windows.each():
        times = windows.times[clock, positions].astype(float)
        results[rows, step] = function(times, windows.values[rows, positions], step)
    return results


def _stdvar(windows: Windows) -> Result:
    with np.errstate(all="ignore"):
        return _per_window(windows, lambda _, values, __: values.var(axis=1)), windows.filled()


def _stddev(windows: Windows) -> Result:
    variance, present = _stdvar(windows)
    return np.sqrt(variance), present


def _mad(windows: Windows) -> Result:
    """Return the median of the absolute deviations from the median."""

    def deviation(_: Floats, values: Floats, __: int) -> Floats:
        medians = quantiles(values, 0.5)
        deviations = quantiles(np.abs(values - medians[:, None]), 0.5)
        return np.where(np.isnan(values).any(axis=1), np.nan, deviations)

    return _per_window(windows, deviation), windows.filled()


def quantiles(values: Floats, quantile: float) -> Floats:
    """Return a quantile of each row, interpolated between neighbours. NaN sorts before all numbers."""
    if math.isnan(quantile):
        return np.full(len(values), np.nan)
    if quantile < 0 or quantile > 1:
        return np.full(len(values), math.copysign(math.inf, quantile))
    nans = np.isnan(values).sum(axis=1)
    ordered = np.sort(values, axis=1)
    if nans.any():  # numpy sorts NaN last
        ordered = np.array([np.roll(row, count) for row, count in zip(ordered, nans, strict=True)])
    rank = quantile * (values.shape[1] - 1)
    lower = max(0, math.floor(rank))
    upper = min(values.shape[1] - 1, lower + 1)
    weight = rank - math.floor(rank)
    with np.errstate(all="ignore"):
        result: Floats = ordered[:, lower] * (1 - weight) + ordered[:, upper] * weight
    return result


def _regression(times: Floats, values: Floats, intercept_time: float) -> tuple[Floats, Floats]:
    """Return slope per second and value at the intercept time of the least-squares line of each row."""
    seconds = (times - intercept_time) / 1000
    count = len(times)
    with np.errstate(all="ignore"):
        mean_x, mean_y = seconds.mean(), values.mean(axis=1)
        covariance = ((seconds - mean_x) * (values - mean_y[:, None])).sum(axis=1) / count
        variance = ((seconds - mean_x) ** 2).sum() / count
        slope = covariance / variance
        intercept = mean_y - slope * mean_x
    constant = (values == values[:, :1]).all(axis=1)
    is_infinite = constant & np.isinf(values[:, 0])
    slope = np.where(constant, np.where(is_infinite, np.nan, 0.0), slope)
    intercept = np.where(constant, np.where(is_infinite, np.nan, values[:, 0]), intercept)
    return slope, intercept


def _deriv(windows: Windows) -> Result:
    def slope(times: Floats, values: Floats, _: int) -> Floats:
        if len(times) < 2:
            return np.full(len(values), np.nan)
        return _regression(times, values, times[0])[0]

    return _per_window(windows, slope), windows.filled(2)


def _predict_linear(windows: Windows, parameters: list[Floats]) -> Result:
    def predicted(times: Floats, values: Floats, step: int) -> Floats:
        if len(times) < 2:
            return np.full(len(values), np.nan)
        slope, intercept = _regression(times, values, float(windows.steps[step]))
        return np.asarray(slope * parameters[0][step] + intercept)

    return _per_window(windows, predicted), windows.filled(2)


def _quantile(windows: Windows, parameters: list[Floats]) -> Result:
    def quantile(_: Floats, values: Floats, step: int) -> Floats:
        return quantiles(values, float(parameters[0][step]))

    return _per_window(windows, quantile), windows.filled()


def _smoothing(windows: Windows, parameters: list[Floats]) -> Result:
    """Return double exponential smoothing, which follows the trend."""

    def smooth(_: Floats, values: Floats, step: int) -> Floats:
        smoothing, trend_factor = float(parameters[0][step]), float(parameters[1][step])
        if not 0 < smoothing < 1:
            raise EvaluationFailed(f"invalid smoothing factor. Expected: 0 < sf < 1, got: {smoothing:f}")
        if not 0 < trend_factor < 1:
            raise EvaluationFailed(f"invalid trend factor. Expected: 0 < tf < 1, got: {trend_factor:f}")
        if values.shape[1] < 2:
            return np.full(len(values), np.nan)
        level, trend = values[:, 0], values[:, 1] - values[:, 0]
        previous = level
        for number in range(1, values.shape[1]):
            if number > 1:
                trend = trend_factor * (level - previous) + (1 - trend_factor) * trend
            previous, level = level, smoothing * values[:, number] + (1 - smoothing) * (level + trend)
        return np.asarray(level)

    return _per_window(windows, smooth), windows.filled(2)


KERNELS: dict[str, Kernel] = {
    "rate": _rate, "increase": _increase, "delta": _delta, "irate": _irate, "idelta": _idelta, "changes": _changes,
    "resets": _resets, "sum_over_time": _sum, "avg_over_time": _avg, "min_over_time": _min, "max_over_time": _max,
    "count_over_time": _count, "last_over_time": _last, "first_over_time": _first, "present_over_time": _present,
    "stddev_over_time": _stddev, "stdvar_over_time": _stdvar, "mad_over_time": _mad, "deriv": _deriv,
    "ts_of_first_over_time": _time_of_first, "ts_of_last_over_time": _time_of_last,
    "ts_of_min_over_time": _time_of_min, "ts_of_max_over_time": _time_of_max,
}  # fmt: skip

PARAMETER_KERNELS: dict[str, ParameterKernel] = {
    "quantile_over_time": _quantile,
    "predict_linear": _predict_linear,
    "double_exponential_smoothing": _smoothing,
}

KEEPS_NAME = {"last_over_time", "first_over_time"}
NEEDS_COUNTER = {"rate", "increase"}
"""Functions that expect a counter. They add a note if the metric's name is not that of a counter."""
