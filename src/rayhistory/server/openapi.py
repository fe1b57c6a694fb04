"""Our own API, described for programs: OpenAPI 3.1, made from the routes and from what is said of each of them here."""

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from rayhistory import __version__
from rayhistory.index.ask import DEFAULT_LIMIT, LARGEST_LIMIT
from rayhistory.index.query import KEYS
from rayhistory.server.frontend import DashboardChoice
from rayhistory.web import SESSION_STATES, SORTS, Course, SessionRow

PREFIX = "/api/history/"
SESSION = "/s/{namespace}/{cluster}/{session}"
DOCUMENT = f"{PREFIX}openapi.json"

_REFERENCE = "#/components/schemas/{name}"
_OWNER = "^(none|(rayjob|rayservice)(/[a-z0-9-]+)?)$"


class Sessions(Struct):
    """One page of the sessions in the store, running ones first, then the newest first."""

    sessions: list[SessionRow]
    total: Annotated[int, Meta(description="how many match, on all pages")]
    next: Annotated[str | None, Meta(description="the address of the next page; null on the last")]
    namespaces: Annotated[list[str], Meta(description="of all sessions that the visitor may see")]
    dashboards: Annotated[list[str], Meta(description="the versions of Ray's dashboard that can show a session")]


class Rows(Struct):
    """One page of rows of a table: docs/tables.md has the columns."""

    rows: list[dict[str, str | int | float | bool | None]]
    next: Annotated[str | None, Meta(description="the cursor of the next page; null on the last")]
    total: Annotated[int, Meta(description="with count=1: how many rows match, on all pages")] | UnsetType = UNSET


class Gap(Struct):
    source: str
    kind: str
    detail: str
    count: int | None


class Gaps(Struct):
    """What is missing from a session, and why."""

    gaps: list[Gap]
    complete: bool


class MetricName(Struct):
    name: str
    type: str
    nodes: int


class MetricNames(Struct):
    """Without `name`: every metric that was sampled."""

    metrics: list[MetricName]
    series_dropped: int
    files_damaged: int


class Series(Struct):
    node: str
    labels: dict[str, str]
    points: Annotated[list[tuple[int, float]], Meta(description="times in ms since 1970, and values")]


class MetricPoints(Struct):
    """With `name`: the points of its series."""

    name: str
    type: str
    series: list[Series]
    series_dropped: int
    files_damaged: int


class LiveCluster(Struct):
    namespace: str
    cluster: str
    state: Annotated[str, Meta(description="running, starting, suspended or gone")]
    owner_kind: str | None
    owner_name: str | None
    ray_version: str | None
    created_ms: int | None
    sessions: Annotated[int, Meta(description="how many sessions of it are in the store")]
    newest: Annotated[str | None, Meta(description="the newest of them")]
    url: Annotated[str | None, Meta(description="where its present state is shown; null when it is gone")]


class Clusters(Struct):
    """The clusters that there are, in Kubernetes or by the word of their collectors, and those that there were."""

    clusters: list[LiveCluster]
    problem: Annotated[str | None, Meta(description="why Kubernetes cannot be asked now, if so")]


class Problem(Struct):
    status: int
    message: Annotated[str, Meta(description="one line that says what was wrong and what to do")]


class Failure(Struct):
    """Every error of this API has this shape."""

    error: Problem


class Described(Struct, frozen=True):
    text: str
    answers: tuple[type, ...]
    """More than one where the parameters decide; none for a JSON document of another standard."""
    parameters: tuple[dict[str, Any], ...] = ()


def _query(name: str, text: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": text, "schema": {"type": "string", **schema}}


def _ms(name: str, text: str) -> dict[str, Any]:
    return _query(name, text, type="integer", minimum=0, maximum=2**53)


_TABLE = {
    "name": "table",
    "in": "path",
    "required": True,
    "description": "which table",
    "schema": {"type": "string", "enum": sorted(KEYS)},
}
_WHERE = {
    "name": "where",
    "in": "query",
    "description": "a condition: a column, one of = != < <= > >= ~ (contains) ^= (begins with), and a value. May be "
    "repeated",
    "explode": True,
    "schema": {"type": "array", "items": {"type": "string"}},
}
_LABELS = {
    "name": "labels",
    "in": "query",
    "description": "any other parameter is a label that the series must have",
    "style": "form",
    "explode": True,
    "schema": {"type": "object", "additionalProperties": {"type": "string"}},
}

ABOUT_SERVER = {
    DOCUMENT: Described("This document.", ()),
    f"{PREFIX}clusters": Described("The clusters, alive and gone.", (Clusters,)),
    f"{PREFIX}sessions": Described(
        "The sessions in the store.",
        (Sessions,),
        (
            _query("q", "words that must be in the names"),
            _query("namespace", "only of this namespace"),
            _query("state", "only in this state", enum=list(SESSION_STATES)),
            _query("owner", "rayjob, rayservice, none, or one owner: rayjob/nightly", pattern=_OWNER),
            _query("since", "started within the last hours or days: 24h, 7d", pattern="^[0-9]{1,5}[hd]$"),
            _query("from", "started on this day (UTC) or later", format="date"),
            _query("to", "started on this day (UTC) or earlier", format="date"),
            _query("sort", "instead of the usual order; a minus means descending", enum=list(SORTS)),
            _query("page", "which page of 50", type="integer", minimum=1),
        ),
    ),
}
ABOUT_SESSION = {
    f"{PREFIX}rows/{{table}}": Described(
        "Rows of a table: any columns, filters and order, page by page.",
        (Rows,),
        (
            _TABLE,
            _query("columns", "which, separated by commas (default: all)"),
            _WHERE,
            _query("sort", "columns separated by commas; a leading minus means descending"),
            _query("limit", "rows per page", type="integer", minimum=1, maximum=LARGEST_LIMIT, default=DEFAULT_LIMIT),
            _query("cursor", "`next` of the page before, with everything else as it was"),
            _query("count", "1: tell `total` too", enum=["0", "1"]),
        ),
    ),
    f"{PREFIX}gaps": Described("What is missing from the session, and why.", (Gaps,)),
    f"{PREFIX}course": Described(
        "From when to when the session is known, and when something failed in it: at most 200 marks.", (Course,)
    ),
    f"{PREFIX}dashboards": Described(
        "The versions of Ray's dashboard that can show the session, and the one that does.",
        (DashboardChoice,),
        (_query("dashboard", "the version that the page was asked to use"),),
    ),
    f"{PREFIX}metrics": Described(
        "The metrics that the nodes had.",
        (MetricNames, MetricPoints),
        (
            _query("name", "a metric; without it, all names are listed"),
            _query("node", "only of this node"),
            _ms("from", "not before, in ms since 1970"),
            _ms("to", "not after, in ms since 1970"),
            _ms("step", "at most one point, the last, in so many ms"),
            _LABELS,
        ),
    ),
}
"""What is below the address of a session."""

_OF_SESSION: tuple[dict[str, Any], ...] = tuple(
    {"name": name, "in": "path", "required": True, "description": text, "schema": {"type": "string"}}
    for name, text in (
        ("namespace", "the namespace"),
        ("cluster", "the cluster; ~rayjob/{name} and ~rayservice/{name} stand for the newest of an owner"),
        ("session", "the session's name, or latest; @ and a time (ms since 1970) for its state as of then"),
    )
)
_FAILURES = {
    "400": "what was asked for cannot be read",
    "401": "who asks is not known: a token is needed",
    "403": "the token is not valid, or its owner may not see the session's namespace",
    "404": "no such session",
    "429": "too many expensive calls, or wrong tokens, in a minute: try again after Retry-After seconds",
    "500": "the session cannot be shown",
    "503": "the store does not answer now, or the session is being indexed: try again after Retry-After seconds",
}


def own_paths(paths: Iterable[str]) -> list[str]:
    """Those of our API among the paths of routes."""
    return sorted({path for path in paths if path.startswith(PREFIX)})


def document(server_paths: Iterable[str], session_paths: Iterable[str]) -> dict[str, Any]:
    """The whole description. A route that nothing is said of is a mistake, and found when this is made."""
    described = (ABOUT_SERVER | ABOUT_SESSION).values()
    kinds = [Failure, *(kind for about in described for kind in about.answers)]
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for path in own_paths(server_paths):
        paths[path] = {"get": _operation(path, ABOUT_SERVER[path])}
    for path in own_paths(session_paths):
        paths[SESSION + path] = {"get": _operation(path, ABOUT_SESSION[path]), "parameters": list(_OF_SESSION)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Ray History Server",
            "version": __version__,
            "description": "What Ray's own API does not have. All of it can only be read.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(path: str, about: Described) -> dict[str, Any]:
    answers = [{"$ref": _REFERENCE.format(name=kind.__name__)} for kind in about.answers]
    schema: dict[str, Any] = {"anyOf": answers} if len(answers) > 1 else answers[0] if answers else {"type": "object"}
    failure = {"$ref": _REFERENCE.format(name=Failure.__name__)}
    return {
        "summary": about.text,
        "operationId": path.removeprefix(PREFIX).partition("/")[0].partition(".")[0],
        "parameters": list(about.parameters),
        "responses": {
            "200": {"description": "as asked", "content": _json(schema)},
            **{status: {"description": text, "content": _json(failure)} for status, text in _FAILURES.items()},
        },
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
