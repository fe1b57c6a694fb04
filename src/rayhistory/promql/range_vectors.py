"""Range vectors as the result of an instant query, such as `ray_tasks[5m]`."""

from collections.abc import Iterable

import numpy as np

from rayhistory.promql.selectors import Windows
from rayhistory.promql.values import RangeVector


def range_vector(windows: Iterable[Windows]) -> RangeVector:
    """Return the samples of each series in its only window."""
    rows = []
    for each in windows:
        for row, labels in enumerate(each.labels):
            clock = 0 if each.clock is None else int(each.clock[row])
            inside = slice(int(each.left[clock, 0]), int(each.right[clock, 0]))
            if inside.start < inside.stop:
                rows.append((labels, each.times[clock, inside], np.array(each.values[row, inside])))
    return RangeVector(sorted(rows, key=lambda row: row[0]))
