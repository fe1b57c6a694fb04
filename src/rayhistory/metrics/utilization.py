"""Utilization of a whole session in a few numbers, for lists of sessions."""

import math
from collections.abc import Sequence

import numpy as np

from rayhistory.metrics.sample_querier import SampleQuerier
from rayhistory.metrics.sample_tiles import SampleTile
from rayhistory.promql.engine import evaluate, grid
from rayhistory.promql.values import Vector
from rayhistory.sessions import SessionRef

POINTS = 30
_QUERIES = {
    "cpu": "avg(avg_over_time(ray_node_cpu_utilization[{step}ms]))",
    "memory": "100 * sum(avg_over_time(ray_node_mem_used[{step}ms]))"
    " / sum(avg_over_time(ray_node_mem_total[{step}ms]))",
    "gpu": "avg(avg_over_time(ray_node_gpus_utilization[{step}ms]))",
}
METRICS = ("ray_node_cpu_utilization", "ray_node_mem_used", "ray_node_mem_total", "ray_node_gpus_utilization")
_MIN_STEP_MS = 15_000


def utilization(ref: SessionRef, tiles: Sequence[SampleTile]) -> dict[str, list[int | None]]:
    """Return percentages over the time of the session, in at most 30 points. Resources without samples are left out."""
    filled = [tile.clocks for tile in tiles if tile.clocks.last_ms >= 0]
    if not filled:
        return {}
    first, last = min(each.first_ms for each in filled), max(each.last_ms for each in filled)
    step = max(_MIN_STEP_MS, math.ceil((last - first) / POINTS))
    times = grid(first + step, max(last, first + step), step)
    querier = SampleQuerier(ref, tiles, last)
    found = {
        name: _percent(evaluate(query.format(step=step), times, querier).value) for name, query in _QUERIES.items()
    }
    return {name: values for name, values in found.items() if any(value is not None for value in values)}


def _percent(value: object) -> list[int | None]:
    if not isinstance(value, Vector) or not value.labels:
        return []
    shown = value.present[0] & np.isfinite(value.values[0])
    numbers = np.clip(np.where(shown, value.values[0], 0.0), 0, 100).round().astype(int).tolist()
    return [number if is_shown else None for number, is_shown in zip(numbers, shown.tolist(), strict=True)]
