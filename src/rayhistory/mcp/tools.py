"""The tools: each is a function over the library, with a schema of its arguments."""

import math
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec

from rayhistory.api.async_history import AsyncHistory, AsyncSession, RowSelection
from rayhistory.mcp.answer import Answer, Row
from rayhistory.mcp.run_tools import CompareSessions, JobTrend, compare_sessions, job_trend
from rayhistory.mcp.tool_arguments import Limit, Session, ToolArguments

_MAX_LOG_LINES = 1_000
_FAILED = "state = FAILED and closed_by_history = false and type != DRIVER_TASK"


class SessionArguments(ToolArguments, kw_only=True):
    session: Session = ""


class FindSessions(ToolArguments, kw_only=True):
    query: Annotated[str, msgspec.Meta(description="words that the names must contain")] = ""
    namespace: str = ""
    state: Annotated[str, msgspec.Meta(description="running, ended or vanished")] = ""
    since: Annotated[str, msgspec.Meta(description="started within this time, such as 24h or 7d")] = ""
    limit: Limit = 20


class GetFailures(SessionArguments, kw_only=True):
    limit: Limit = 20


class Explain(SessionArguments, kw_only=True):
    id: Annotated[
        str, msgspec.Meta(min_length=4, description="id of a task, actor, worker, node or job; a prefix is enough")
    ]


class ReadLog(SessionArguments, kw_only=True):
    task_id: str = ""
    actor_id: str = ""
    submission_id: str = ""
    node_id: Annotated[str, msgspec.Meta(description="with file: the node that wrote it")] = ""
    file: Annotated[str, msgspec.Meta(description="path below the node's log directory")] = ""
    stream: Annotated[str, msgspec.Meta(pattern="^(out|err)$", description="out or err, of a task or an actor")] = "out"
    lines: Annotated[int, msgspec.Meta(ge=1, le=_MAX_LOG_LINES, description="how many of the last lines")] = 100


class SearchLogs(SessionArguments, kw_only=True):
    text: Annotated[str, msgspec.Meta(min_length=1, description="text to find, or a regular expression with regex")]
    regex: bool = False
    case: Annotated[bool, msgspec.Meta(description="distinguish upper and lower case")] = False
    node: str = ""
    file: Annotated[str, msgspec.Meta(description="glob over file paths, such as worker-*.err")] = ""
    context: Annotated[int, msgspec.Meta(ge=0, le=20, description="lines before and after each hit")] = 0
    limit: Limit = 20


class QueryMetrics(SessionArguments, kw_only=True):
    query: Annotated[str, msgspec.Meta(min_length=1, description="PromQL, such as max by (ip) (ray_node_mem_used)")]
    limit: Limit = 20


class QuerySql(SessionArguments, kw_only=True):
    query: Annotated[
        str, msgspec.Meta(min_length=1, description="one SELECT on tasks, actors, jobs, nodes, workers, …")
    ]
    limit: Limit = 50


async def find_sessions(history: AsyncHistory, given: FindSessions) -> Answer:
    filters = {"q": given.query, "namespace": given.namespace, "state": given.state, "since": given.since}
    given_filters = {name: value for name, value in filters.items() if value}
    rows, total = await history.first_sessions(given.limit, **given_filters)
    shown = [row | {"name": f"{row['namespace']}/{row['cluster']}/{row['session']}"} for row in rows]
    answer = Answer(given.max_tokens, history.url)
    answer.add(f"{total} sessions, newest first; {len(rows)} are shown")
    answer.add_rows(
        "sessions",
        shown,
        ("name", "state", *_present(shown, "verdict", "headline", "failed_tasks")),
        "narrow the query",
    )
    return answer


async def get_overview(history: AsyncHistory, given: SessionArguments) -> Answer:
    session = await history.session(given.session)
    overview = await session.overview()
    answer = _answer(session, given)
    times = f"started_ms {overview['started_ms']}, last_ms {overview['last_ms']}"
    answer.add(f"session {session.name}: {overview['state']}, {times}")
    jobs = await _rows(session, "jobs", "", 20)
    answer.add_rows("jobs", jobs, ("submission_id", "job_id", "status", "entrypoint", "message"))
    for table in ("tasks", "actors", "nodes"):
        answer.add(f"{table}: {await session.count(RowSelection(table))}")
    answer.add(f"failed tasks: {await session.count(RowSelection('tasks', _FAILED))}, gaps: {overview['gaps']}")
    return answer


async def get_failures(history: AsyncHistory, given: GetFailures) -> Answer:
    session = await history.session(given.session)
    answer = _answer(session, given)
    jobs = await _rows(session, "jobs", "status = FAILED", given.limit)
    answer.add_rows("failed jobs", jobs, ("submission_id", "job_id", "status", "driver_exit_code", "message"))
    total = await session.count(RowSelection("tasks", _FAILED))
    tasks = await _rows(session, "tasks", _FAILED, given.limit, sort="-end_time_ms")
    answer.add(f"{total} failed task attempts, the newest first")
    answer.add_rows(
        "failed tasks",
        tasks,
        ("task_id", "attempt_number", "name", "error_type", "node_id", "error_message"),
        "use query_sql, or explain one task",
    )
    actors = await _rows(session, "actors", "state = DEAD and closed_by_history = false", given.limit)
    answer.add_rows("dead actors", actors, ("actor_id", "class_name", "num_restarts", "death_cause"))
    nodes = await _rows(session, "nodes", "state = DEAD and closed_by_history = false", given.limit)
    answer.add_rows("dead nodes", nodes, ("node_id", "node_ip", *_present(nodes, "death_info", "state_message")))
    return answer


async def diagnose(history: AsyncHistory, given: SessionArguments) -> Answer:
    session = await history.session(given.session)
    found = await session.diagnose()
    answer = _answer(session, given, "diagnosis")
    verdict = found["verdict"]
    if verdict:
        answer.add(f"verdict {verdict['code']} ({verdict['confidence']}):")
        answer.add_text("headline", verdict["headline"])
    else:
        answer.add("no verdict: every job succeeded, or none has ended")
    findings = [row | row["counts"] for row in found["findings"]]
    answer.add_rows("findings", findings, ("code", "severity", "confidence", "headline", "tasks", "suggestion"))
    for finding in found["findings"][:2]:
        answer.add_rows(f"evidence of {finding['code']}", finding["evidence"], ("kind", "id", "text", "at_ms"))
    answer.add_rows("rules that could not run", found["skipped"], ("code", "reason"))
    return answer


async def explain(history: AsyncHistory, given: Explain) -> Answer:
    """Everything about one task, actor, node or job: its row, and the end of its log."""
    session = await history.session(given.session)
    answer = _answer(session, given)
    prefix = given.id.replace("'", "")
    for table, key in (
        ("tasks", "task_id"),
        ("actors", "actor_id"),
        ("workers", "worker_id"),
        ("nodes", "node_id"),
        ("jobs", "job_id"),
        ("jobs", "submission_id"),
    ):
        rows = await _rows(session, table, f"{key} ^= '{prefix}'", 5)
        if not rows:
            continue
        for row in rows:
            facts = [{"column": name, "value": value} for name, value in row.items() if value not in (None, "")]
            answer.add_rows(table[:-1], facts, ("column", "value"))
        if table in ("tasks", "actors"):
            text = await _log_text(session, {key: rows[-1][key], "suffix": "err", "lines": 40})
            answer.add_text("the end of its stderr", text, "use read_log")
        return answer
    answer.add(
        f"no task, actor, worker, node or job has an id that begins with {prefix!r}: search for it with query_sql"
    )
    return answer


async def timeline(history: AsyncHistory, given: SessionArguments) -> Answer:
    session = await history.session(given.session)
    overview = await session.overview()
    answer = _answer(session, given)
    events = [{"at_ms": overview["started_ms"], "what": "session started"}]
    for row in await _rows(session, "jobs", "", 50):
        name = row["submission_id"] or row["job_id"]
        events += _moments(
            row, ("start_time", f"job {name} started"), ("end_time", f"job {name} ended: {row['status']}")
        )
    for row in await _rows(session, "nodes", "", 100):
        events += _moments(
            row, ("start_time_ms", f"node {row['node_id']} started"), ("end_time_ms", f"node {row['node_id']} ended")
        )
    events += [{"at_ms": each["at_ms"], "what": f"failures: {each}"} for each in overview["failures"]]
    events.append({"at_ms": overview["last_ms"], "what": f"last data, session {overview['state']}"})
    answer.add_rows("events in order", sorted(events, key=lambda each: each["at_ms"]), ("at_ms", "what"))
    return answer


async def read_log(history: AsyncHistory, given: ReadLog) -> Answer:
    session = await history.session(given.session)
    chosen = {
        "task_id": given.task_id,
        "actor_id": given.actor_id,
        "submission_id": given.submission_id,
        "node_id": given.node_id,
        "filename": given.file,
    }
    params: Row = {name: value for name, value in chosen.items() if value}
    if given.task_id or given.actor_id:
        params["suffix"] = given.stream
    text = await _log_text(session, params | {"lines": given.lines})
    answer = _answer(session, given)
    answer.add_text(f"the last {given.lines} lines", text, "ask for fewer lines, or use search_logs")
    return answer


async def search_logs(history: AsyncHistory, given: SearchLogs) -> Answer:
    session = await history.session(given.session)
    options = {
        "regex": given.regex,
        "case": given.case,
        "node": given.node or None,
        "file": given.file or None,
        "context": given.context,
    }
    hits = [hit async for hit in session.search(given.text, limit=given.limit, **options)]
    rows = [hit | {"text": "\n".join([*hit.get("before", []), hit["text"], *hit.get("after", [])])} for hit in hits]
    answer = _answer(session, given)
    answer.add_rows("hits", rows, ("file", "line", "task_id", "text", "node_id"), "use file, node or a rarer text")
    return answer


async def query_metrics(history: AsyncHistory, given: QueryMetrics) -> Answer:
    """First, last, lowest and highest value of each series, because all values would fill the agent's context."""
    session = await history.session(given.session)
    series: dict[str, list[Row]] = {}
    for row in await session.metrics(given.query, start_ms=None, end_ms=None, step_ms=None):
        labels = {name: value for name, value in row.items() if name not in ("time_ms", "value")}
        series.setdefault(str(labels), []).append(row)
    rows = [_series_summary(labels, points) for labels, points in series.items()]
    answer = _answer(session, given)
    answer.add(f"{len(rows)} series")
    answer.add_rows(
        "series", rows[: given.limit], ("labels", "first", "last", "min", "max", "max_at_ms"), "aggregate the query"
    )
    return answer


async def query_sql(history: AsyncHistory, given: QuerySql) -> Answer:
    session = await history.session(given.session)
    rows = await session.sql(given.query, given.limit)
    answer = _answer(session, given)
    answer.add_rows("rows", rows, list(rows[0]) if len(rows) else ["no rows"], "select fewer columns or rows")
    if not rows.complete:
        answer.add("There are more rows than the limit.")
    return answer


async def list_gaps(history: AsyncHistory, given: SessionArguments) -> Answer:
    session = await history.session(given.session)
    found = await session.gaps()
    answer = _answer(session, given, "gaps")
    answer.add("complete: nothing was lost" if found["complete"] else "some data was lost")
    answer.add_rows("gaps", found["gaps"], ("code", "count", "place", "summary", "remedy"))
    return answer


class Tool(msgspec.Struct, frozen=True):
    name: str
    description: str
    arguments: type[ToolArguments]
    run: Callable[[AsyncHistory, Any], Awaitable[Answer]]

    @property
    def schema(self) -> Row:
        (reference,), components = msgspec.json.schema_components([self.arguments])
        return {"type": "object", **components[reference["$ref"].rpartition("/")[2]]}


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            "diagnose", "Why a session failed or was slow: verdict, findings, evidence. Start here.",
            SessionArguments, diagnose,
        ),
        Tool("find_sessions", "Find sessions of Ray clusters, running and gone.", FindSessions, find_sessions),
        Tool("get_overview", "State, times, jobs and counts of a session.", SessionArguments, get_overview),
        Tool("get_failures", "Failed jobs and tasks, dead actors and nodes, with errors.", GetFailures, get_failures),
        Tool("explain", "All that is known about a task, actor, worker, node or job.", Explain, explain),
        Tool("timeline", "What happened when: jobs, nodes and failures in order.", SessionArguments, timeline),
        Tool("search_logs", "Find lines in all logs of all nodes of a session.", SearchLogs, search_logs),
        Tool("read_log", "The last lines of a log: of a task, an actor, a job or a file.", ReadLog, read_log),
        Tool(
            "query_metrics", "Evaluate PromQL over a session's metrics; a summary per series.",
            QueryMetrics, query_metrics,
        ),
        Tool("query_sql", "Run one SELECT on a session's tables.", QuerySql, query_sql),
        Tool(
            "compare_sessions", "What differs between two sessions: environment, functions, failures.",
            CompareSessions, compare_sessions,
        ),
        Tool("job_trend", "Runs of a job over time: success, durations, regressions, failures.", JobTrend, job_trend),
        Tool("list_gaps", "What is missing from a session, and why.", SessionArguments, list_gaps),
    )
}  # fmt: skip


def _answer(session: AsyncSession, given: ToolArguments, page: str = "") -> Answer:
    return Answer(given.max_tokens, session.url + page)


async def _rows(session: AsyncSession, table: str, where: str, limit: int, sort: str = "") -> list[Row]:
    return [row async for page in session.pages(RowSelection(table, where, "", sort, limit)) for row in page]


async def _log_text(session: AsyncSession, params: Row) -> str:
    return b"".join([chunk async for chunk in session.read_log(**params)]).decode(errors="replace")


def _present(rows: list[Row], *columns: str) -> tuple[str, ...]:
    return tuple(name for name in columns if rows and name in rows[0])


def _moments(row: Row, *moments: tuple[str, str]) -> list[Row]:
    return [{"at_ms": row[column], "what": text} for column, text in moments if row[column]]


def _series_summary(labels: str, points: list[Row]) -> Row:
    finite = [point for point in points if not math.isnan(point["value"])] or points
    highest = max(finite, key=lambda point: point["value"])
    return {
        "labels": labels, "first": points[0]["value"], "last": points[-1]["value"],
        "min": min(point["value"] for point in finite), "max": highest["value"], "max_at_ms": highest["time_ms"],
    }  # fmt: skip
