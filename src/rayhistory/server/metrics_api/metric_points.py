"""Names and points of the metrics of a session's nodes."""

import asyncio
import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.errors import RayHistoryError, UsageError
from rayhistory.metrics.object_listing import MetricQuery
from rayhistory.server.http.error_responses import api_error_response
from rayhistory.server.http.responses import json_response
from rayhistory.server.http.view_routes import plain_route, resolver_of, selection_of

_MAX_LABELS = 32


async def metrics(request: Request) -> Response:
    """List all metrics, or return the points of `name`. Unknown parameters are label filters."""
    labels = dict(request.query_params)
    try:
        name, node, step = labels.pop("name", None), labels.pop("node", None), _pop_ms(labels, "step", 1)
        as_of_ms = selection_of(request).as_of_ms
        default = MetricQuery() if as_of_ms is None else MetricQuery(end=as_of_ms)
        start, end = _pop_ms(labels, "from", default.start), _pop_ms(labels, "to", default.end)
        if len(labels) > _MAX_LABELS:
            raise UsageError(f"request has {len(labels)} labels: use at most {_MAX_LABELS}")
        query = MetricQuery(node, start, min(end, default.end))
        stored = await resolver_of(request).metrics(selection_of(request), query)
        if name is None:
            return json_response(await asyncio.to_thread(stored.names))
        return json_response(await asyncio.to_thread(stored.points, name, labels, query, max(1, step)))
    except RayHistoryError as error:
        return api_error_response(error)


def _pop_ms(params: dict[str, str], name: str, default: int) -> int:
    text = params.pop(name, None)
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,19}", text):
        raise UsageError(f"invalid {name} {text[:40]!r}: use a number of milliseconds")
    return int(text)


ROUTES: list[BaseRoute] = [plain_route("/api/history/metrics", metrics)]
