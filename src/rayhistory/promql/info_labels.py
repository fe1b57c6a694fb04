"""`info()`: add the labels of info series, such as `target_info`, to series of the same `instance` and `job`."""

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from rayhistory.promql.arrays import Mask, Rows, Times
from rayhistory.promql.info_selector import InfoSelector
from rayhistory.promql.labels import Labels, format_labels, labels_of, metric_name
from rayhistory.promql.query_errors import EvaluationFailed
from rayhistory.promql.selectors import latest_times
from rayhistory.promql.syntax import info_times
from rayhistory.promql.values import Vector, unique_rows

if TYPE_CHECKING:
    from rayhistory.promql.engine import Evaluation

_IDENTIFYING = ("instance", "job")


def info(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Vector:
    base, selector = evaluation.vector(arguments[0], times), InfoSelector.of(arguments)
    shift_ms, fixed_ms = info_times(arguments[0], *evaluation.query_times)
    ends = (times if fixed_ms is None else np.full_like(times, fixed_ms)) - shift_ms
    infos = _InfoSeries(latest_times(*evaluation.latest(selector.matchers, ends)))
    results: list[tuple[Labels, int, Mask]] = []
    for row, labels in enumerate(base.labels):
        if selector.has_name(metric_name(labels)):  # an info series itself
            results.append((labels, row, base.present[row]))
            continue
        choices = infos.chosen(labels)
        for series, mask in _distinct(choices, base.present[row]):
            if series or not selector.is_required:
                results.append((_joined(labels, [infos.labels[each] for each in series], selector), row, mask))
    rows = [row for _, row, _ in results]
    if not rows:
        return base.rows([])
    return unique_rows(
        Vector([labels for labels, _, _ in results], base.values[rows], np.array([m for *_, m in results]))
    )


class _InfoSeries:
    """Info series, and the time of their latest sample at each step."""

    def __init__(self, times: Vector) -> None:
        self.labels = list(times.labels)
        self._times = np.where(times.present, times.values, -np.inf)
        self._rows: dict[Labels, list[list[int]]] = {}
        """The series of each metric, by their identifying labels."""
        order = sorted(range(len(self.labels)), key=lambda row: metric_name(self.labels[row]))
        for _, rows in groupby(order, key=lambda row: metric_name(self.labels[row])):
            by_identity: dict[Labels, list[int]] = {}
            for row in rows:
                by_identity.setdefault(_identity(self.labels[row]), []).append(row)
            for identity, same in by_identity.items():
                self._rows.setdefault(identity, []).append(same)

    def chosen(self, labels: Labels) -> list[Rows]:
        """Return, for each info metric and step, the series with the newest sample; -1 if there is none."""
        identity = _identity(labels)
        return [self._newest(rows) for rows in self._rows.get(identity, [])] if identity else []

    def _newest(self, rows: list[int]) -> Rows:
        times = self._times[rows]
        newest = times.max(axis=0)
        is_newest = (times == newest) & (newest > -np.inf)
        conflicts = np.flatnonzero(is_newest.sum(axis=0) > 1)
        if conflicts.size:
            step = int(conflicts[0])
            one, two = (format_labels(self.labels[rows[n]]) for n in np.flatnonzero(is_newest[:, step])[:2])
            at = round(float(newest[step]) * 1000)
            raise EvaluationFailed(f"found duplicate series for info metric: existing {one} @ {at}, new {two} @ {at}")
        return np.where(is_newest.any(axis=0), np.array(rows)[is_newest.argmax(axis=0)], -1)


def _identity(labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] in _IDENTIFYING)


def _distinct(choices: list[Rows], present: Mask) -> Iterator[tuple[list[int], Mask]]:
    """Yield each combination of info series, and the steps that have it."""
    if not choices:
        yield [], present
        return
    combinations, which = np.unique(np.array(choices), axis=1, return_inverse=True)
    for number, combination in enumerate(combinations.T.tolist()):
        mask = present & (which.reshape(-1) == number)
        if mask.any():
            yield [row for row in combination if row >= 0], mask


def _joined(labels: Labels, infos: list[Labels], selector: InfoSelector) -> Labels:
    own, added = dict(labels), dict[str, str]()
    for each in infos:
        for name, value in each:
            if not selector.adds(name):
                continue
            if added.get(name, value) != value:
                raise EvaluationFailed(f"conflicting label: {name}")
            if name not in own:
                added[name] = value
    return labels_of(own | added)
