"""Response bodies of the history API. The server encodes them, clients decode them, and OpenAPI describes them."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from rayhistory.web import SessionRow

MAX_SQL_ROWS = 10_000


class SessionList(Struct):
    """One page of the sessions in the store: running sessions first, then the newest first."""

    sessions: list[SessionRow]
    total: Annotated[int, Meta(description="number of matching sessions, on all pages")]
    next: Annotated[str | None, Meta(description="URL of the next page; null on the last page")]
    namespaces: Annotated[list[str], Meta(description="namespaces of all sessions that the visitor may see")]
    dashboards: Annotated[list[str], Meta(description="installed versions of Ray's dashboard")]
    unsearched: Annotated[int, Meta(description="older sessions of which only the names were searched")] = 0
    unindexed: Annotated[
        int, Meta(description="sessions that may match the filters, but are not indexed, so their jobs are unknown")
    ] = 0


class TableRows(Struct):
    """One page of rows of a table. docs/reference/tables.md lists the columns."""

    rows: list[dict[str, str | int | float | bool | None]]
    next: Annotated[str | None, Meta(description="cursor of the next page; null on the last page")]
    total: Annotated[int, Meta(description="number of matching rows, on all pages; only with count=1")] | UnsetType = (
        UNSET
    )


class SqlRequest(Struct, forbid_unknown_fields=True):
    """The body of an SQL request."""

    query: Annotated[str, Meta(description="one SELECT statement")]
    limit: Annotated[int, Meta(description="maximum number of rows")] = MAX_SQL_ROWS


class SqlRows(Struct):
    """The result of an SQL query."""

    columns: Annotated[list[str], Meta(description="names of the columns; repeated names are numbered")]
    rows: list[dict[str, Any]]
    complete: Annotated[bool, Meta(description="false if there are more rows than the limit")]


class SessionGap(Struct):
    code: Annotated[str, Meta(description="stable code, for programs; the texts below may change")]
    count: int
    place: Annotated[str, Meta(description="object or node; empty if the gap belongs to the whole session")]
    detail: str
    summary: Annotated[str, Meta(description="one line with the count")]
    meaning: str
    remedy: Annotated[str, Meta(description="how to avoid this gap")]
    loss: Annotated[bool, Meta(description="data is missing; false if the gap is informational")]


class GapTotal(Struct):
    gaps: Annotated[int, Meta(description="number of gaps, including those that are not listed")]
    count: Annotated[int, Meta(description="the sum of their counts")]


class SessionGaps(Struct):
    """All gaps of a session."""

    gaps: Annotated[list[SessionGap], Meta(description="the first 1,000 gaps of each code")]
    complete: Annotated[bool, Meta(description="true if no gap stands for lost data")]
    totals: Annotated[dict[str, GapTotal], Meta(description="totals by code")] = {}


class MetricName(Struct):
    name: str
    type: str
    nodes: int


class MetricNames(Struct):
    """The response to a request without the parameter `name`: the names of all sampled metrics."""

    metrics: list[MetricName]
    series_dropped: int
    files_damaged: int


class MetricSeries(Struct):
    node: str
    labels: dict[str, str]
    points: Annotated[list[tuple[int, float]], Meta(description="timestamp in ms since 1970, and value")]


class MetricPoints(Struct):
    """The response to a request with the parameter `name`: the points of all series of this metric."""

    name: str
    type: str
    series: list[MetricSeries]
    series_dropped: int
    files_damaged: int


class TaskOutputLocation(Struct):
    """Files and byte ranges of a task's output, like `task_log_info` in Ray's API."""

    task_id: str
    attempt_number: int
    node_id: str | None
    task_log_info: Annotated[dict[str, str | int] | None, Meta(description="null if it is not known")]
    inferred: Annotated[
        list[str], Meta(description="fields that Ray did not export, and that were inferred from the log files")
    ]


class ClusterSummary(Struct):
    namespace: str
    cluster: str
    state: Annotated[str, Meta(description="running, starting, suspended or gone")]
    owner_kind: str | None
    owner_name: str | None
    ray_version: str | None
    created_ms: int | None
    sessions: Annotated[int, Meta(description="number of its sessions in the store")]
    newest: Annotated[str | None, Meta(description="name of its newest session in the store")]
    url: Annotated[str | None, Meta(description="URL of its live dashboard; null if the cluster is gone")]


class ClusterList(Struct):
    """Clusters that exist in Kubernetes, that a collector reports, or that have sessions in the store."""

    clusters: list[ClusterSummary]
    problem: Annotated[str | None, Meta(description="why the Kubernetes API is unavailable; null if it is not")]


class ErrorDetail(Struct):
    status: int
    code: Annotated[str, Meta(description="stable code, for programs; the message may change")]
    message: Annotated[str, Meta(description="one line: what is wrong, and what to do")]


class ErrorResponse(Struct):
    """The body of every error of this API."""

    error: ErrorDetail


class LogHit(Struct, kw_only=True):
    """One log line that matches a search."""

    node_id: str
    file: Annotated[str, Meta(description="path below the node's log directory")]
    line: Annotated[int | None, Meta(description="number from 1; null if counting would read too much: use offset")]
    offset: Annotated[int, Meta(description="where the line begins in the file, in bytes")]
    text: Annotated[str, Meta(description="the line, cut to 4,096 characters around the match; untrusted")]
    matches: Annotated[list[tuple[int, int]], Meta(description="start and end of the first 100 matches in text")]
    at_ms: Annotated[int, Meta(description="time of the line, in ms since 1970")]
    task_id: str | None
    attempt: int | None
    actor_id: str | None
    url: Annotated[str, Meta(description="page that shows the line")]
    before: list[str] = []
    after: list[str] = []
    cut: Annotated[bool, Meta(description="the text is cut")] | UnsetType = UNSET
    approximate: (
        Annotated[bool, Meta(description="the line has no time: it is that of a line before it, or of its upload")]
        | UnsetType
    ) = UNSET
    namespace: Annotated[str, Meta(description="only in a search over sessions")] | UnsetType = UNSET
    cluster: Annotated[str, Meta(description="only in a search over sessions")] | UnsetType = UNSET
    session: Annotated[str, Meta(description="only in a search over sessions")] | UnsetType = UNSET


MAX_COUNTED_PLACES = 100
"""Maximum number of files, and of nodes, in the counts of a search."""


class FileHits(Struct):
    node_id: str
    file: str
    hits: int


class NodeHits(Struct):
    node_id: str
    hits: int


class HitHistogram(Struct):
    step_ms: int
    buckets: Annotated[list[tuple[int, int]], Meta(description="start of each step in ms since 1970, and its hits")]


class HitCounts(Struct):
    """Counts of all matching lines, with `counts=1`: per file and node (highest first), and over time."""

    complete: Annotated[bool, Meta(description="everything was counted")]
    files: Annotated[list[FileHits], Meta(description="at most 100")]
    nodes: Annotated[list[NodeHits], Meta(description="at most 100")]
    histogram: HitHistogram


class LogHits(Struct):
    """One page of hits.

    A stream (application/x-ndjson) has one JSON object per line instead: hits, `{"progress": …}` after each group of
    hits, and at the end this object without `hits`.
    """

    hits: list[LogHit]
    next: Annotated[str | None, Meta(description="cursor of the next page; null if everything was searched")]
    complete: Annotated[bool, Meta(description="everything was searched: there are no more hits")]
    scanned_bytes: int
    total: Annotated[int | None, Meta(description="number of matching lines; null if not all were counted")]
    counts: HitCounts | UnsetType = UNSET


class SearchEnd(Struct):
    """The last line of a stream of hits."""

    next: str | None
    complete: bool
    scanned_bytes: int
    total: int | None
    counts: HitCounts | UnsetType = UNSET


class SearchProgress(Struct):
    """The progress of a search."""

    scanned_bytes: int
    total_bytes: int
    hits: int
    counts: HitCounts | UnsetType = UNSET
