"""Small charts of metrics, aligned at the start of the sessions, as points of an SVG."""

from collections.abc import Iterable
from typing import Protocol


class MetricSteps(Protocol):
    """Values of a metric in equal steps of time; None where it was not measured."""

    @property
    def step_ms(self) -> int: ...
    @property
    def values(self) -> list[float | None]: ...


class DayOfRuns(Protocol):
    """The outcomes of the runs of one day."""

    @property
    def succeeded(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def other(self) -> int: ...


def most_runs(days: Iterable[DayOfRuns]) -> int:
    """Return the number of runs on the busiest day, at least 1, for the height of a chart."""
    return max((day.succeeded + day.failed + day.other for day in days), default=1) or 1


def spark_points(metric: MetricSteps) -> str:
    """Return the points, with seconds as x and percent as y."""
    step = metric.step_ms / 1000
    return " ".join(
        f"{number * step:.0f},{100 - min(max(value, 0.0), 100.0):.1f}"
        for number, value in enumerate(metric.values)
        if value is not None
    )


def spark_width(metrics: Iterable[MetricSteps | None]) -> int:
    """Return the duration of the longest session in seconds, so that all charts of a row have the same scale."""
    return max(1, *(len(metric.values) * metric.step_ms // 1000 for metric in metrics if metric), 1)


def spark_text(metric: MetricSteps) -> str:
    values = [value for value in metric.values if value is not None]
    return f"mean {sum(values) / len(values):.0f}, most {max(values):.0f}" if values else "no samples"
