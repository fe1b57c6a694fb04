"""Datasets of Ray Data for the job page, with measurements from stored metrics.

Ray's dashboard asks a Prometheus for the measurements of datasets and operators. A head without a Prometheus reports
them as the number 0, and those are replaced here. Measurements of a Prometheus are texts, and are kept.
"""

import asyncio
import contextlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.errors import RayHistoryError
from rayhistory.masking import mask_env_vars
from rayhistory.promql.engine import grid
from rayhistory.promql.values import Vector
from rayhistory.server.http.redaction import is_browser
from rayhistory.server.http.responses import json_response
from rayhistory.server.http.view_routes import resolver_of, selection_of, view_route
from rayhistory.server.metrics_api.session_metrics import evaluate_query
from rayhistory.server.view import SessionView

_MEASUREMENT = re.compile(r"ray_data_[a-z_]{1,64}", re.ASCII)
_MAX_MEASUREMENTS = 20
_MAX_STEPS = 5_000
"""Maximum number of steps at which a highest value is looked for: a session may be long."""

Key = tuple[str, ...]
"""A dataset, or a dataset and its operator."""


async def datasets(request: Request, view: SessionView) -> Response:
    stored = await view.dashboard_response(f"/api/data/datasets/{request.path_params['job']}") or {"datasets": []}
    missing = list(_missing(stored))
    if missing:
        with contextlib.suppress(RayHistoryError):  # without metrics, the measurements stay 0
            await _fill(request, missing)
    mask = is_browser(request)
    return await asyncio.to_thread(lambda: json_response(mask_env_vars(stored) if mask else stored))


def _missing(stored: Any) -> Iterator[tuple[Key, str, dict[str, Any]]]:
    """Yield the measurements that the head did not have: of what, the name of the metric, and the values to replace."""
    for dataset in _dicts(stored, "datasets"):
        for key, each in _with_operators(dataset):
            for name, values in each.items():
                if _MEASUREMENT.fullmatch(name) and _is_unmeasured(values):
                    yield key, name, values


def _is_unmeasured(values: Any) -> bool:
    is_measurement = isinstance(values, dict) and values.keys() <= {"value", "max"}
    return is_measurement and all(type(value) is int and value == 0 for value in values.values())


def _with_operators(dataset: dict[str, Any]) -> Iterator[tuple[Key, dict[str, Any]]]:
    name = dataset.get("dataset")
    if isinstance(name, str):
        yield (name,), dataset
        for operator in _dicts(dataset, "operators"):
            if isinstance(operator.get("operator"), str):
                yield (name, operator["operator"]), operator


def _dicts(parent: Any, name: str) -> list[dict[str, Any]]:
    found = parent.get(name) if isinstance(parent, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


async def _fill(request: Request, missing: list[tuple[Key, str, dict[str, Any]]]) -> None:
    """Replace values: `value` is the one at the end, `max` the highest one of the session."""
    times = await resolver_of(request).metrics_times(selection_of(request))
    if times is None:
        return
    range_ms = max(1000, times.last_ms - times.first_ms + 1)
    over_session = f"[{range_ms}ms:{max(1000, -(-range_ms // _MAX_STEPS))}ms]"
    for name in sorted({name for _, name, _ in missing})[:_MAX_MEASUREMENTS]:
        for labels in ("dataset", "dataset, operator"):
            total = f"sum({name}) by ({labels})"
            queries = {"value": total, "max": f"max_over_time({total}{over_session})"}
            found = {kind: await _values(request, text, times.last_ms, labels) for kind, text in queries.items()}
            for key, measured, values in missing:
                if measured == name:
                    values |= {kind: found[kind][key] for kind in values if key in found[kind]}


async def _values(request: Request, query: str, at_ms: int, labels: str) -> dict[Key, float]:
    evaluated = await evaluate_query(request, query, grid(at_ms, at_ms, 1))
    vector, names = evaluated.result.value, labels.split(", ")
    if not isinstance(vector, Vector):
        return {}
    rows = zip(map(dict, vector.labels), vector.values[:, 0].tolist(), strict=True)
    return {tuple(row.get(name, "") for name in names): value for row, value in rows if np.isfinite(value)}


ROUTES: list[BaseRoute] = [view_route("/api/data/datasets/{job}", datasets)]
