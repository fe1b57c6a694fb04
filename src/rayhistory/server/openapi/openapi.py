"""The OpenAPI 3.1 document of the history API, generated from the routes and the descriptions in this module."""

from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayhistory import __version__
from rayhistory.diagnosis.findings import Diagnosis
from rayhistory.index.query.query import KEY_COLUMNS
from rayhistory.index.query.query_params import DEFAULT_LIMIT, MAX_LIMIT
from rayhistory.metrics.chart_data import ChartData
from rayhistory.runs.comparison import SessionComparison
from rayhistory.runs.fleet import Fleet
from rayhistory.runs.group_details import RunGroupDetails
from rayhistory.runs.run_groups import SORTS as RUN_SORTS
from rayhistory.search.search_query import DEFAULT_LIMIT as SEARCH_DEFAULT_LIMIT
from rayhistory.search.search_query import MAX_CONTEXT, STREAMS
from rayhistory.search.search_query import MAX_LIMIT as SEARCH_LIMIT
from rayhistory.server.api_routes import SESSION_ROUTES
from rayhistory.server.frontend import DashboardChoice
from rayhistory.server.history_api.api_types import (
    ClusterList,
    ErrorResponse,
    LogHits,
    MetricNames,
    MetricPoints,
    SessionGaps,
    SessionList,
    SqlRequest,
    SqlRows,
    TableRows,
    TaskOutputPlace,
)
from rayhistory.server.http.paths import HISTORY_API
from rayhistory.server.http.responses import json_response
from rayhistory.server.metrics_api.chart_types import ChartDashboard, ChartMarkers, DashboardTitles
from rayhistory.server.row_files import MEDIA_TYPE
from rayhistory.server.runs_api.run_query import KINDS as RUN_KINDS
from rayhistory.server.runs_api.run_types import RunList
from rayhistory.web import SESSION_STATES, SORTS, SessionOverview

SESSION_PATH = "/s/{namespace}/{cluster}/{session}"
DOCUMENT_PATH = f"{HISTORY_API}openapi.json"

_SCHEMA_REF = "#/components/schemas/{name}"
_OWNER_PATTERN = "^(none|(rayjob|rayservice)(/[a-z0-9-]+)?)$"


class Endpoint(msgspec.Struct, frozen=True):
    summary: str
    responses: tuple[type, ...]
    """More than one if the parameters decide; none if the body is defined by another standard."""
    parameters: tuple[dict[str, Any], ...] = ()
    operation: str = ""
    """The `operationId`, if it is not the first part of the path."""

    body: type | None = None
    """The JSON body of a POST. Without one, the endpoint takes GET."""

    media_type: str = ""
    """Of a body that is not JSON."""

    @property
    def method(self) -> str:
        return "post" if self.body else "get"


def _query(name: str, text: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": text, "schema": {"type": "string", **schema}}


def _ms(name: str, text: str) -> dict[str, Any]:
    return _query(name, text, type="integer", minimum=0, maximum=2**53)


_TABLE = {
    "name": "table",
    "in": "path",
    "required": True,
    "description": "name of the table",
    "schema": {"type": "string", "enum": sorted(KEY_COLUMNS)},
}
_WHERE = {
    "name": "where",
    "in": "query",
    "description": "condition: a column, an operator (= != < <= > >=, ~ for contains, ^= for starts with) and a value. "
    "Conditions are combined with and, or and parentheses. May be repeated; all must match",
    "explode": True,
    "schema": {"type": "array", "items": {"type": "string"}},
}
_LABELS = {
    "name": "labels",
    "in": "query",
    "description": "every other parameter is a label that the series must have",
    "style": "form",
    "explode": True,
    "schema": {"type": "object", "additionalProperties": {"type": "string"}},
}

_FLAG = {"enum": ["0", "1"]}
SEARCH_PARAMETERS = (
    _query("q", "text to search for", minLength=1) | {"required": True},
    _query("regex", "1: q is a regular expression in RE2's syntax", **_FLAG),
    _query("case", "1: the case of letters matters", **_FLAG),
    _query("word", "1: only whole words", **_FLAG),
    _query("node", "only files of this node: its id, or how it begins"),
    _query("file", "only files whose path, or name, matches this glob"),
    _query("stream", "only files of this stream", enum=list(STREAMS)),
    _query("job", "only output of this job: its id or submission id"),
    _query("task", "only output of this task"),
    _query("actor", "only output of this actor"),
    _query("from", "only lines at this time or later: ms since 1970, or ISO 8601"),
    _query("to", "only lines before this time: ms since 1970, or ISO 8601"),
    _query("order", "order by time", enum=["newest", "oldest"], default="newest"),
    _query("context", "lines before and after each hit", type="integer", minimum=0, maximum=MAX_CONTEXT, default=0),
    _query("limit", "hits per page", type="integer", minimum=1, maximum=SEARCH_LIMIT, default=SEARCH_DEFAULT_LIMIT),
    _query("cursor", "`next` of the previous page; all other parameters must be the same"),
    _query("counts", "`1`: count all matching lines, per file, per node and over time"),
)
_UID = {
    "name": "uid",
    "in": "path",
    "required": True,
    "description": "uid of the dashboard",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
}
_PANEL = {
    "name": "panel",
    "in": "path",
    "required": True,
    "description": "id of the panel",
    "schema": {"type": "integer", "minimum": 0},
}
_CHART_PARAMETERS = (
    _query("from", "start: milliseconds since 1970, or relative to the session's last sample", default="now-30m"),
    _query("to", "end, likewise", default="now"),
    _query("points", "at most this many steps", type="integer", minimum=10, maximum=2000, default=300),
    _query("var-NAME", "value of the dashboard's variable NAME; may be repeated"),
)

RUN_PARAMETERS = (
    _query("q", "words in the name or namespace"),
    _query("namespace", "only runs in this namespace"),
    _query("owner", "rayjob, rayservice, or a single owner: rayjob/nightly"),
    _query("kind", "only groups of this kind", enum=list(RUN_KINDS)),
    _query("since", "only sessions that started within this time: 24h, 7d", pattern="^[0-9]{1,5}[hd]$"),
    _query("failed", "1: only groups whose newest run failed", **_FLAG),
    _query("regressed", "1: only groups whose newest good run is slower than those before", **_FLAG),
    _query("sort", "sort order; a leading minus means descending", enum=list(RUN_SORTS)),
    _query("page", "page number; a page has 50 groups", type="integer", minimum=1),
)
_RUN_GROUP = {
    "name": "key",
    "in": "path",
    "required": True,
    "description": "`key` of a group",
    "schema": {"type": "string"},
}

SERVER_ENDPOINTS = {
    DOCUMENT_PATH: Endpoint("This document.", ()),
    f"{HISTORY_API}clusters": Endpoint("Clusters, live and gone.", (ClusterList,)),
    f"{HISTORY_API}sessions": Endpoint(
        "Sessions in the store.",
        (SessionList,),
        (
            _query("q", "words in the names of the session, or in an id, the entrypoint or the metadata of a job"),
            _query("namespace", "only sessions in this namespace"),
            _query("cluster", "only sessions of clusters with this name"),
            _query("failed", "1: only sessions with failed jobs or tasks", enum=["0", "1"]),
            _query("state", "only sessions in this state", enum=list(SESSION_STATES)),
            _query("owner", "rayjob, rayservice, none, or a single owner: rayjob/nightly", pattern=_OWNER_PATTERN),
            _query("since", "started within this time: 24h, 7d", pattern="^[0-9]{1,5}[hd]$"),
            _query("from", "started on this day (UTC) or later", format="date"),
            _query("to", "started on this day (UTC) or earlier", format="date"),
            _query("sort", "sort order; a leading minus means descending", enum=list(SORTS)),
            _query("page", "page number; a page has 50 sessions", type="integer", minimum=1),
        ),
    ),
    f"{HISTORY_API}compare": Endpoint(
        "Differences of up to ten sessions: environment, functions, failures and metrics.",
        (SessionComparison,),
        (
            {
                "name": "session",
                "in": "query",
                "required": True,
                "description": "a session: namespace/cluster/session. Given twice or more",
                "explode": True,
                "schema": {"type": "array", "items": {"type": "string"}},
            },
        ),
    ),
    f"{HISTORY_API}fleet": Endpoint(
        "Figures of all runs: by day, by namespace, and by failure.",
        (Fleet,),
        (
            _query("namespace", "only runs in this namespace"),
            _query("since", "only sessions that started within this time: 7d", pattern="^[0-9]{1,5}[hd]$"),
        ),
    ),
    f"{HISTORY_API}runs": Endpoint(
        "Jobs across sessions, in groups of the same job, with their trends.", (RunList,), RUN_PARAMETERS
    ),
    f"{HISTORY_API}runs/{{key}}": Endpoint(
        "One group: its runs, functions and fingerprints.",
        (RunGroupDetails,),
        (_RUN_GROUP, *(each for each in RUN_PARAMETERS if each["name"] == "since")),
        "run_group",
    ),
    f"{HISTORY_API}search": Endpoint(
        "Search in all log files of all sessions, the newest sessions first.",
        (LogHits,),
        (
            *(each for each in SEARCH_PARAMETERS if each["name"] not in ("job", "task", "actor", "counts")),
            _query("namespace", "only sessions in this namespace"),
            _query("cluster", "only sessions of clusters with this name"),
            _query("owner", "rayjob, rayservice, none, or a single owner: rayjob/nightly", pattern=_OWNER_PATTERN),
            _query("since", "only sessions that started within this time: 24h, 7d", pattern="^[0-9]{1,5}[hd]$"),
        ),
    ),
}
SESSION_ENDPOINTS = {
    f"{HISTORY_API}rows/{{table}}": Endpoint(
        "Rows of a table, with selected columns, filters and sort order, page by page.",
        (TableRows,),
        (
            _TABLE,
            _query("columns", "names separated by commas (default: all)"),
            _WHERE,
            _query("sort", "columns separated by commas; a leading minus means descending"),
            _query("limit", "rows per page", type="integer", minimum=1, maximum=MAX_LIMIT, default=DEFAULT_LIMIT),
            _query("cursor", "`next` of the previous page; all other parameters must be the same"),
            _query("count", "1: include `total`", enum=["0", "1"]),
        ),
    ),
    f"{HISTORY_API}rows/{{table}}.parquet": Endpoint(
        "All selected rows of a table as one Parquet file, for programs that want whole tables.",
        (),
        (
            _TABLE,
            _query("columns", "names separated by commas (default: all)"),
            _WHERE,
            _query("sort", "columns separated by commas; a leading minus means descending (default: no order)"),
            _query("limit", "number of rows (default: all)", type="integer", minimum=1),
        ),
        operation="rows_parquet",
        media_type=MEDIA_TYPE,
    ),
    f"{HISTORY_API}gaps": Endpoint(
        "Gaps: everything missing from the session, with meaning and remedy.", (SessionGaps,)
    ),
    f"{HISTORY_API}diagnosis": Endpoint(
        "Why the session failed and why it was slow: a verdict, and findings with evidence.", (Diagnosis,)
    ),
    f"{HISTORY_API}overview": Endpoint(
        "Start, end and state of the session, and when something failed: at most 200 markers.", (SessionOverview,)
    ),
    f"{HISTORY_API}sql": Endpoint(
        "SQL on the tables: one SELECT. Off unless the server runs with --sql.", (SqlRows,), body=SqlRequest
    ),
    f"{HISTORY_API}task_log_info": Endpoint(
        "The place of a task's output in the log files, and which parts of it were inferred.",
        (TaskOutputPlace,),
        (
            _query("task_id", "the task's id") | {"required": True},
            _query("attempt", "number of the attempt (default: the last)", type="integer", minimum=0),
        ),
    ),
    f"{HISTORY_API}search": Endpoint("Search in all log files of the session.", (LogHits,), SEARCH_PARAMETERS),
    f"{HISTORY_API}charts": Endpoint("Grafana dashboards of the session.", (DashboardTitles,)),
    f"{HISTORY_API}charts/{{uid}}": Endpoint(
        "Rows, panels and variables of a dashboard.",
        (ChartDashboard,),
        (_UID, *_CHART_PARAMETERS),
        "chart_dashboard",
    ),
    f"{HISTORY_API}charts/{{uid}}/panels/{{panel}}": Endpoint(
        "Series of one panel, evaluated over the stored samples.",
        (ChartData,),
        (_UID, _PANEL, *_CHART_PARAMETERS),
        "chart_panel",
    ),
    f"{HISTORY_API}chart_markers": Endpoint(
        "Failures, deaths of nodes, starts and ends of jobs, as markers on charts.", (ChartMarkers,)
    ),
    f"{HISTORY_API}dashboards": Endpoint(
        "Installed versions of Ray's dashboard, and the one that is shown.",
        (DashboardChoice,),
        (_query("dashboard", "the version requested by the page"),),
    ),
    f"{HISTORY_API}metrics": Endpoint(
        "Metrics of the nodes.",
        (MetricNames, MetricPoints),
        (
            _query("name", "name of a metric; without it, all names are listed"),
            _query("node", "only series of this node"),
            _ms("from", "start time, in ms since 1970"),
            _ms("to", "end time, in ms since 1970"),
            _ms("step", "step in ms: of each step, only the last point is returned"),
            _LABELS,
        ),
    ),
}
"""Endpoints below the path of a session."""

_SESSION_PARAMETERS: tuple[dict[str, Any], ...] = tuple(
    {"name": name, "in": "path", "required": True, "description": text, "schema": {"type": "string"}}
    for name, text in (
        ("namespace", "the Kubernetes namespace"),
        ("cluster", "the cluster, or ~rayjob/{name} or ~rayservice/{name} for the newest cluster of an owner"),
        ("session", "the session's name, or latest; with @{ms since 1970} the session as of that time"),
    )
)
_ERRORS = {
    "400": "invalid parameter or path",
    "401": "not signed in: send a token",
    "403": "access denied: the token is invalid, or gives no access to the session's namespace",
    "404": "session not found",
    "429": "too many expensive calls or invalid tokens in a minute: retry after Retry-After seconds",
    "500": "the session could not be indexed",
    "503": "the store is unavailable, or the session is being indexed: retry after Retry-After seconds",
}


def api_paths(paths: Iterable[str]) -> list[str]:
    """Return the paths that belong to the history API."""
    return sorted({path for path in paths if path.startswith(HISTORY_API)})


def build_document(server_paths: Iterable[str], session_paths: Iterable[str]) -> dict[str, Any]:
    """Build the document. Raises KeyError for a route without a description."""
    endpoints = (SERVER_ENDPOINTS | SESSION_ENDPOINTS).values()
    types = [ErrorResponse, *(each for endpoint in endpoints for each in endpoint.responses)]
    types += [endpoint.body for endpoint in endpoints if endpoint.body]
    _, schemas = msgspec.json.schema_components(types, ref_template=_SCHEMA_REF)
    paths: dict[str, dict[str, Any]] = {}
    for path in api_paths(server_paths):
        endpoint = SERVER_ENDPOINTS[path]
        paths[path] = {endpoint.method: _operation(path, endpoint)}
    for path in api_paths(session_paths):
        endpoint = SESSION_ENDPOINTS[path]
        paths[SESSION_PATH + path] = {
            endpoint.method: _operation(path, endpoint),
            "parameters": list(_SESSION_PARAMETERS),
        }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Ray History Server",
            "version": __version__,
            "description": "What Ray's own API does not offer. The API is read-only.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(path: str, endpoint: Endpoint) -> dict[str, Any]:
    bodies = [{"$ref": _SCHEMA_REF.format(name=body.__name__)} for body in endpoint.responses]
    schema: dict[str, Any] = {"anyOf": bodies} if len(bodies) > 1 else bodies[0] if bodies else {"type": "object"}
    content = {endpoint.media_type: {}} if endpoint.media_type else _json(schema)
    error = {"$ref": _SCHEMA_REF.format(name=ErrorResponse.__name__)}
    return {
        "summary": endpoint.summary,
        "operationId": endpoint.operation or path.removeprefix(HISTORY_API).partition("/")[0].partition(".")[0],
        "parameters": list(endpoint.parameters),
        **_request_body(endpoint),
        "responses": {
            "200": {"description": "success", "content": content},
            **{status: {"description": text, "content": _json(error)} for status, text in _ERRORS.items()},
        },
    }


def _request_body(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.body is None:
        return {}
    return {
        "requestBody": {
            "required": True,
            "content": _json({"$ref": _SCHEMA_REF.format(name=endpoint.body.__name__)}),
        }
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


async def openapi_document(request: Request) -> Response:
    server_paths = [route.path for route in request.app.routes if isinstance(route, Route)]
    session_paths = [route.path for route in SESSION_ROUTES if isinstance(route, Route)]
    return json_response(build_document(server_paths, session_paths))


ROUTES = [Route(DOCUMENT_PATH, openapi_document)]
