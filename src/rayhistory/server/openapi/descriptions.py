"""Descriptions of all endpoints of the history API. A route without one fails a test."""

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
from rayhistory.server.frontend import DashboardChoice
from rayhistory.server.history_api.api_types import (
    ClusterList,
    LogHits,
    MetricNames,
    MetricPoints,
    SessionGaps,
    SessionList,
    SqlRequest,
    SqlRows,
    TableRows,
    TaskOutputLocation,
)
from rayhistory.server.http.paths import HISTORY_API
from rayhistory.server.metrics_api.chart_types import ChartDashboard, ChartMarkers, DashboardTitles
from rayhistory.server.openapi.endpoint_description import Endpoint, ms, query
from rayhistory.server.row_files import ARCHIVE_TYPE, PARQUET_TYPE
from rayhistory.server.runs_api.run_query import KINDS as RUN_KINDS
from rayhistory.server.runs_api.run_types import RunList
from rayhistory.web import SESSION_STATES, SORTS, SessionOverview

DOCUMENT_PATH = f"{HISTORY_API}openapi.json"

_OWNER_PATTERN = "^(none|(rayjob|rayservice)(/[a-z0-9-]+)?)$"


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
    "description": "any other parameter is a label that the series must have",
    "style": "form",
    "explode": True,
    "schema": {"type": "object", "additionalProperties": {"type": "string"}},
}

_FLAG = {"enum": ["0", "1"]}
SEARCH_PARAMETERS = (
    query("q", "text to search for", minLength=1) | {"required": True},
    query("regex", "1: q is a regular expression in RE2's syntax", **_FLAG),
    query("case", "1: case-sensitive", **_FLAG),
    query("word", "1: only whole words", **_FLAG),
    query("node", "only files of this node: its id, or the beginning of it"),
    query("file", "only files whose path or name matches this glob"),
    query("stream", "only files of this stream", enum=list(STREAMS)),
    query("job", "only output of this job: its id or submission id"),
    query("task", "only output of this task"),
    query("actor", "only output of this actor"),
    query("from", "only lines at this time or later: ms since 1970, or ISO 8601"),
    query("to", "only lines before this time: ms since 1970, or ISO 8601"),
    query("order", "order by time", enum=["newest", "oldest"], default="newest"),
    query("context", "lines before and after each hit", type="integer", minimum=0, maximum=MAX_CONTEXT, default=0),
    query("limit", "hits per page", type="integer", minimum=1, maximum=SEARCH_LIMIT, default=SEARCH_DEFAULT_LIMIT),
    query("cursor", "`next` of the previous page; all other parameters must be the same"),
    query("counts", "`1`: count all matching lines, per file, per node and over time"),
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
    query("from", "start: milliseconds since 1970, or relative to the session's last sample", default="now-30m"),
    query("to", "end: milliseconds since 1970, or relative to the session's last sample", default="now"),
    query("points", "maximum number of steps", type="integer", minimum=10, maximum=2000, default=300),
    query("var-NAME", "value of the dashboard's variable NAME; may be repeated"),
)

RUN_PARAMETERS = (
    query("q", "words in the name or namespace"),
    query("namespace", "only runs in this namespace"),
    query("owner", "rayjob, rayservice, or a single owner: rayjob/nightly"),
    query("kind", "only groups of this kind", enum=list(RUN_KINDS)),
    query("since", "only sessions that started within this time: 24h, 7d", pattern="^[0-9]{1,5}[hd]$"),
    query("failed", "1: only groups whose newest run failed", **_FLAG),
    query("regressed", "1: only groups whose newest successful run is slower than earlier ones", **_FLAG),
    query("sort", "sort order; a leading minus means descending", enum=list(RUN_SORTS)),
    query("page", "page number; a page has 50 groups", type="integer", minimum=1),
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
    f"{HISTORY_API}clusters": Endpoint("All clusters, running or gone.", (ClusterList,)),
    f"{HISTORY_API}sessions": Endpoint(
        "Sessions in the store.",
        (SessionList,),
        (
            query("q", "words in the names of the session, or in an id, the entrypoint or the metadata of a job"),
            query("namespace", "only sessions in this namespace"),
            query("cluster", "only sessions of clusters with this name"),
            query("failed", "1: only sessions that failed: a job failed, or the cluster vanished", enum=["0", "1"]),
            query("state", "only sessions in this state", enum=list(SESSION_STATES)),
            query("owner", "rayjob, rayservice, none, or a single owner: rayjob/nightly", pattern=_OWNER_PATTERN),
            query("since", "started within this time: 24h, 7d", pattern="^[0-9]{1,5}[hd]$"),
            query("from", "started on this day (UTC) or later", format="date"),
            query("to", "started on this day (UTC) or earlier", format="date"),
            query("sort", "sort order; a leading minus means descending", enum=list(SORTS)),
            query("page", "page number; a page has 50 sessions", type="integer", minimum=1),
        ),
    ),
    f"{HISTORY_API}compare": Endpoint(
        "Differences between up to ten sessions: environment, functions, failures and metrics.",
        (SessionComparison,),
        (
            {
                "name": "session",
                "in": "query",
                "required": True,
                "description": "a session: namespace/cluster/session. Must be given at least twice",
                "explode": True,
                "schema": {"type": "array", "items": {"type": "string"}},
            },
        ),
    ),
    f"{HISTORY_API}fleet": Endpoint(
        "Figures of all runs: by day, by namespace, and by failure.",
        (Fleet,),
        (
            query("namespace", "only runs in this namespace"),
            query("since", "only sessions that started within this time: 7d", pattern="^[0-9]{1,5}[hd]$"),
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
            query("namespace", "only sessions in this namespace"),
            query("cluster", "only sessions of clusters with this name"),
            query("owner", "rayjob, rayservice, none, or a single owner: rayjob/nightly", pattern=_OWNER_PATTERN),
            query("since", "only sessions that started within this time: 24h, 7d", pattern="^[0-9]{1,5}[hd]$"),
        ),
    ),
}
SESSION_ENDPOINTS = {
    f"{HISTORY_API}rows/{{table}}": Endpoint(
        "Rows of a table, with selected columns, filters and sort order, page by page.",
        (TableRows,),
        (
            _TABLE,
            query("columns", "names separated by commas (default: all)"),
            _WHERE,
            query("sort", "columns separated by commas; a leading minus means descending"),
            query("limit", "rows per page", type="integer", minimum=1, maximum=MAX_LIMIT, default=DEFAULT_LIMIT),
            query("cursor", "`next` of the previous page; all other parameters must be the same"),
            query("count", "1: include `total`", enum=["0", "1"]),
        ),
    ),
    f"{HISTORY_API}rows/{{table}}.parquet": Endpoint(
        "All selected rows of a table as one Parquet file.",
        (),
        (
            _TABLE,
            query("columns", "names separated by commas (default: all)"),
            _WHERE,
            query("sort", "columns separated by commas; a leading minus means descending (default: no order)"),
            query("limit", "number of rows (default: all)", type="integer", minimum=1),
        ),
        operation="rows_parquet",
        media_type=PARQUET_TYPE,
    ),
    f"{HISTORY_API}rows/{{table}}.zip": Endpoint(
        "A whole table as the index stores it: a zip archive of Parquet files. Rows are not ordered.",
        (),
        (_TABLE, query("superseded", "1: include superseded rows, and a list of them", **_FLAG)),
        operation="rows_archive",
        media_type=ARCHIVE_TYPE,
    ),
    f"{HISTORY_API}gaps": Endpoint(
        "Gaps: missing or incomplete data of the session, with meaning and remedy.", (SessionGaps,)
    ),
    f"{HISTORY_API}diagnosis": Endpoint(
        "Why the session failed or was slow: a verdict, and findings with evidence.", (Diagnosis,)
    ),
    f"{HISTORY_API}overview": Endpoint(
        "Start, end and state of the session, and its failures over time: at most 200 markers.", (SessionOverview,)
    ),
    f"{HISTORY_API}sql": Endpoint(
        "SQL on the tables: one SELECT. Disabled unless the server runs with --sql.", (SqlRows,), body=SqlRequest
    ),
    f"{HISTORY_API}task_log_info": Endpoint(
        "The location of a task's output in the log files, and which of its fields were inferred.",
        (TaskOutputLocation,),
        (
            query("task_id", "the task's id") | {"required": True},
            query("attempt", "number of the attempt (default: the last)", type="integer", minimum=0),
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
        "Installed versions of Ray's dashboard, and the version that is shown.",
        (DashboardChoice,),
        (query("dashboard", "the version requested by the page"),),
    ),
    f"{HISTORY_API}metrics": Endpoint(
        "Metrics of the nodes.",
        (MetricNames, MetricPoints),
        (
            query("name", "name of a metric; without it, all names are listed"),
            query("node", "only series of this node"),
            ms("from", "start time, in ms since 1970"),
            ms("to", "end time, in ms since 1970"),
            ms("step", "step in ms. Only the last point of each step is returned"),
            _LABELS,
        ),
    ),
}
"""Endpoints below the path of a session."""
