"""Prometheus' HTTP API over a session's stored samples: queries, labels, series and metadata.

A Prometheus data source of Grafana works with it unmodified. A query without a time is evaluated at the end of the
session, or at the chosen point in time.
"""

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.concurrency import in_thread_to_end
from rayhistory.errors import RayHistoryError
from rayhistory.metrics.object_listing import MetricQuery
from rayhistory.metrics.sample_querier import SampleQuerier
from rayhistory.promql.arrays import Floats, Times
from rayhistory.promql.engine import QueryResult, grid
from rayhistory.promql.labels import Labels
from rayhistory.promql.matchers import Matcher, matchers_of
from rayhistory.promql.query_errors import EvaluationFailed, PromqlError, QuerySyntaxError
from rayhistory.promql.syntax import parse
from rayhistory.promql.values import RangeVector, Scalar, Text, Vector, label_order
from rayhistory.server.http.error_responses import error_headers
from rayhistory.server.http.paths import PROMETHEUS_API, PROMETHEUS_FORMS
from rayhistory.server.http.responses import json_response
from rayhistory.server.http.view_routes import plain_route, selection_of, while_connected
from rayhistory.server.metrics_api.session_metrics import evaluate_query, now_ms, open_labels, query_cache_of
from rayhistory.utc import parse_utc_ms

_MAX_FORM_BYTES = 1 << 18
_DURATION = re.compile(r"(?:\d+(?:ms|[smhdwy]))+")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000, "y": 31_536_000_000}
_MAX_SELECTORS = 20
_MAX_MS = 2**53
_MAX_POINTS = 500_000
_MAX_SERIES = 50_000
_MAX_DURATION_CHARACTERS = 100
_TRUNCATED = "results truncated due to limit"

Parameters = dict[str, list[str]]
Selector = tuple[Matcher, ...]
Handler = Callable[[Request, Parameters], Awaitable[Response]]


async def query(request: Request, parameters: Parameters) -> Response:
    """Evaluate an instant query."""
    at, limit = _time(parameters, "time", await now_ms(request)), _limit(parameters)
    result = await _evaluate(request, parameters, grid(at, at, 1))
    return await _in_thread(lambda: _query_response(_instant_data(result), result, limit))


async def query_range(request: Request, parameters: Parameters) -> Response:
    start, end = _time(parameters, "start"), _time(parameters, "end")
    times = grid(start, end, _duration_ms(_required(parameters, "step"), "step"))
    limit = _limit(parameters)
    result = await _evaluate(request, parameters, times)
    return await _in_thread(lambda: _query_response(_range_data(result), result, limit))


async def labels(request: Request, parameters: Parameters) -> Response:
    limit = _limit(parameters)

    def found(querier: SampleQuerier, matchers: list[Selector]) -> Response:
        return _list_response(sorted(set().union(*(querier.label_names(each) for each in matchers))), limit)

    return await _of_labels(request, parameters, found)


async def label_values(request: Request, parameters: Parameters) -> Response:
    name, limit = request.path_params["name"], _limit(parameters)

    def found(querier: SampleQuerier, matchers: list[Selector]) -> Response:
        return _list_response(sorted(set().union(*(querier.label_values(each, name) for each in matchers))), limit)

    return await _of_labels(request, parameters, found)


async def series(request: Request, parameters: Parameters) -> Response:
    if not parameters.get("match[]"):
        raise QuerySyntaxError("no match[] parameter provided")
    limit = min(_limit(parameters), _MAX_SERIES)
    return await _of_labels(
        request, parameters, lambda querier, matchers: _list_response(_series(querier, matchers, limit), limit)
    )


async def _of_labels(
    request: Request, parameters: Parameters, respond: Callable[[SampleQuerier, list[Selector]], Response]
) -> Response:
    """Respond from the labels of stored series, when it is the visitor's turn."""
    async with query_cache_of(request).turn(request):
        querier, matchers = await _open_matching(request, parameters)
        return await in_thread_to_end(lambda: respond(querier, matchers))


def _series(querier: SampleQuerier, matchers: list[Selector], limit: int) -> list[dict[str, str]]:
    found: set[Labels] = set()
    for labels in (labels for each in matchers for labels in querier.labels(each)):
        found.add(labels)
        if len(found) > _MAX_SERIES and not limit:
            raise EvaluationFailed(f"more than {_MAX_SERIES:,} series match: use a limit, or match fewer series")
        if len(found) > max(limit, _MAX_SERIES):
            break
    return [dict(each) for each in sorted(found)]


async def metadata(request: Request, parameters: Parameters) -> Response:
    wanted, limit = parameters.get("metric", [""])[0], _limit(parameters)
    _, stored = await open_labels(request, await _everything(request), [])
    types = {name: kind for tile in stored.tiles for name, kind in tile.types.items()}
    names = [name for name in sorted(types) if wanted in ("", name)][: limit or None]
    return _success({name: [{"type": types[name], "help": "", "unit": ""}] for name in names})


async def build_info(request: Request, parameters: Parameters) -> Response:
    """Report the version of Prometheus that evaluates queries in the same way. Grafana chooses features by it."""
    return _success(
        {"version": "3.0.0", "revision": "", "branch": "", "buildUser": "", "buildDate": "", "goVersion": ""}
    )


async def _in_thread(make: Callable[[], Response]) -> Response:
    """Make a response outside of the event loop, because a cluster may have any number of series."""
    return await asyncio.to_thread(make)


async def _evaluate(request: Request, parameters: Parameters, times: Times) -> QueryResult:
    if parameters.get("lookback_delta"):
        raise QuerySyntaxError("parameter 'lookback_delta' is not supported")
    text = _required(parameters, "query")
    return (await evaluate_query(request, text, times)).result


async def _everything(request: Request) -> MetricQuery:
    as_of_ms = selection_of(request).as_of_ms
    return MetricQuery() if as_of_ms is None else MetricQuery(end=as_of_ms)


async def _open_matching(request: Request, parameters: Parameters) -> tuple[SampleQuerier, list[Selector]]:
    """Return a querier for labels, and the matchers of each selector."""
    selectors = parameters.get("match[]", [])
    if len(selectors) > _MAX_SELECTORS:
        raise QuerySyntaxError(f"too many match[] parameters: use at most {_MAX_SELECTORS}")
    matchers = [matchers_of(parse(selector)) for selector in selectors] or [()]
    everything = await _everything(request)
    chosen = MetricQuery(
        None,
        _time(parameters, "start", everything.start),
        min(_time(parameters, "end", everything.end), everything.end),
    )
    querier, _ = await open_labels(request, chosen)
    return querier, matchers


def _required(parameters: Parameters, name: str) -> str:
    values = parameters.get(name)
    if not values or not values[0]:
        raise QuerySyntaxError(f"invalid parameter {name!r}: missing")
    return values[0]


def _limit(parameters: Parameters) -> int:
    """Return the maximum number of results; 0 means all of them."""
    text = parameters.get("limit", [""])[0] or "0"
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise QuerySyntaxError(f"invalid parameter 'limit': {text[:40]!r} is not a number of results")
    return int(text)


def _time(parameters: Parameters, name: str, default: int | None = None) -> int:
    """Parse a Unix time in seconds, or RFC 3339, as milliseconds."""
    if default is not None and not parameters.get(name):
        return default
    text = _required(parameters, name)
    try:
        seconds = float(text)
    except ValueError:
        try:
            return parse_utc_ms(text)
        except ValueError:
            seconds = math.nan
    if not abs(seconds * 1000) < _MAX_MS:
        raise QuerySyntaxError(f"invalid parameter {name!r}: cannot parse {text!r} to a valid timestamp")
    return round(seconds * 1000)


def _duration_ms(text: str, name: str) -> int:
    if len(text) <= _MAX_DURATION_CHARACTERS and _DURATION.fullmatch(text):
        return sum(int(number) * _UNIT_MS[unit] for number, unit in re.findall(r"(\d+)(ms|[smhdwy])", text))
    try:
        milliseconds = float(text) * 1000
    except ValueError:
        milliseconds = math.nan
    if not abs(milliseconds) < _MAX_MS:
        raise QuerySyntaxError(f"invalid parameter {name!r}: cannot parse {text!r} to a valid duration")
    return round(milliseconds)


def _instant_data(result: QueryResult) -> dict[str, Any]:
    at, value = int(result.times[0]) / 1000, result.value
    if isinstance(value, Scalar):
        return {"resultType": "scalar", "result": [at, format_sample(float(value.values[0]))]}
    if isinstance(value, Text):
        return {"resultType": "string", "result": [at, value.value]}
    if isinstance(value, RangeVector):
        _check_points(value.samples)
        return {"resultType": "matrix", "result": [_range_row(*row) for row in value.rows]}
    rows = [
        {"metric": dict(labels), "value": [at, format_sample(float(value.values[row, 0]))]}
        for row, labels in enumerate(value.labels)
    ]
    return {"resultType": "vector", "result": rows}


def _range_data(result: QueryResult) -> dict[str, Any]:
    value = result.value
    if isinstance(value, Text | RangeVector):
        kind = "string" if isinstance(value, Text) else "range vector"
        raise QuerySyntaxError(f'invalid expression type "{kind}" for range query, must be Scalar or instant Vector')
    seconds = (result.times / 1000).tolist()
    _check_points(int(value.present.sum()) if isinstance(value, Vector) else len(seconds))
    if isinstance(value, Scalar):
        points = [[at, format_sample(number)] for at, number in zip(seconds, value.values.tolist(), strict=True)]
        return {"resultType": "matrix", "result": [{"metric": {}, "values": points}]}
    return {"resultType": "matrix", "result": [_row(value, row, seconds) for row in label_order(value.labels)]}


def _check_points(total: int) -> None:
    if total > _MAX_POINTS:
        raise EvaluationFailed(
            f"result has {total:,} points, more than {_MAX_POINTS:,}: use a larger step or fewer series"
        )


def _range_row(labels: Labels, times: Times, values: Floats) -> dict[str, Any]:
    seconds = (times / 1000).tolist()
    points = [[at, format_sample(value)] for at, value in zip(seconds, values.tolist(), strict=True)]
    return {"metric": dict(labels), "values": points}


def _row(vector: Vector, row: int, seconds: list[float]) -> dict[str, Any]:
    numbers, exist = vector.values[row].tolist(), vector.present[row].tolist()
    points = [
        [at, format_sample(number)]
        for at, number, is_present in zip(seconds, numbers, exist, strict=True)
        if is_present
    ]
    return {"metric": dict(vector.labels[row]), "values": points}


def format_sample(value: float) -> str:
    """Format a sample's value as Prometheus does in JSON."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    text = repr(value)
    return text.removesuffix(".0") if "e" not in text else text


def _query_response(data: dict[str, Any], result: QueryResult, limit: int) -> Response:
    warnings = list(result.warnings)
    if limit and data["resultType"] in ("vector", "matrix") and len(data["result"]) > limit:
        data["result"] = data["result"][:limit]
        warnings.append(_TRUNCATED)
    return _success(data, warnings, result.infos)


def _list_response(found: list[Any], limit: int) -> Response:
    is_cut = 0 < limit < len(found)
    return _success(found[: limit or None], [_TRUNCATED] if is_cut else [])


def _success(data: object, warnings: Sequence[str] = (), infos: Sequence[str] = ()) -> Response:
    body: dict[str, Any] = {"status": "success", "data": data}
    if warnings:
        body["warnings"] = warnings
    if infos:
        body["infos"] = infos
    return json_response(body)


def prometheus_error(error: RayHistoryError) -> Response:
    kind = error.error_type if isinstance(error, PromqlError) else _error_type(error.http_status)
    body = {"status": "error", "errorType": kind, "error": str(error)}
    return json_response(body, error.http_status, error_headers(error))


def _error_type(status: int) -> str:
    return {400: "bad_data", 404: "not_found", 503: "unavailable"}.get(status, "internal")


async def _parameters(request: Request) -> Parameters:
    """Return the parameters of the URL and of the form, if there is one."""
    found: Parameters = {}
    for name, value in request.query_params.multi_items():
        found.setdefault(name, []).append(value)
    if request.method == "POST":
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_FORM_BYTES:
                raise QuerySyntaxError(f"form is larger than {_MAX_FORM_BYTES} bytes")
        for name, values in parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True).items():
            found.setdefault(name, []).extend(values)
    return found


def _route(path: str, handler: Handler) -> BaseRoute:
    async def respond(request: Request, parameters: Parameters) -> Response:
        try:
            return await handler(request, parameters)
        except RayHistoryError as error:
            return prometheus_error(error)

    async def endpoint(request: Request) -> Response:
        try:
            parameters = await _parameters(request)
        except RayHistoryError as error:
            return prometheus_error(error)
        return await while_connected(request, respond(request, parameters))

    methods = ("GET", "POST") if path in PROMETHEUS_FORMS else ("GET",)
    return plain_route(f"{PROMETHEUS_API}{path}", endpoint, methods)


ROUTES: list[BaseRoute] = [
    _route("query", query),
    _route("query_range", query_range),
    _route("labels", labels),
    _route("label/{name}/values", label_values),
    _route("series", series),
    _route("metadata", metadata),
    _route("status/buildinfo", build_info),
]
