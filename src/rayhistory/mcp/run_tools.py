"""Tools about several runs: comparisons and trends."""

from typing import Annotated

import msgspec

from rayhistory.api.async_history import AsyncHistory
from rayhistory.errors import UsageError
from rayhistory.mcp.answer import Answer, Row
from rayhistory.mcp.tool_arguments import Limit, Session, ToolArguments


class CompareSessions(ToolArguments, kw_only=True):
    session: Session = ""
    baseline: Annotated[
        str, msgspec.Meta(description="a session to compare with; empty for the last successful run of the same job")
    ] = ""
    everything: Annotated[bool, msgspec.Meta(description="also list what is equal")] = False
    limit: Limit = 20


class JobTrend(ToolArguments, kw_only=True):
    query: Annotated[str, msgspec.Meta(description="words in the name of the job; empty for all jobs")] = ""
    namespace: str = ""
    since: Annotated[str, msgspec.Meta(description="only runs within this time, such as 24h or 30d")] = ""
    limit: Limit = 10


async def compare_sessions(history: AsyncHistory, given: CompareSessions) -> Answer:
    session = await history.session(given.session)
    baseline = await history.session(given.baseline or await _last_good(history, session.name))
    found = await history.compare(baseline, session)
    names = "&".join(f"session={each['session']}" for each in found["sessions"])
    answer = Answer(given.max_tokens, f"{history.url.rstrip('/')}/compare?{names}")
    answer.add("first the baseline, then the session in question")
    columns = ("session", "status", "duration_ms", "tasks", "failed_tasks", "nodes", "cpu_hours", "gpu_hours")
    answer.add_rows("sessions", found["sessions"], columns)
    verdicts = [each["verdict"] | {"session": each["session"]} for each in found["sessions"] if each["verdict"]]
    answer.add_rows("verdicts", verdicts, ("session", "code", "headline"))
    failures = [row for row in found["fingerprints"] if given.everything or row["new"] or row["gone"]]
    answer.add_rows("failures", failures, ("new", "gone", "code", "headline"))
    environment = [_pair(row) for row in found["environment"] if given.everything or row["differs"]]
    answer.add_rows("environment", environment[: given.limit], ("name", "before", "after"))
    functions = [_function(row) for row in found["functions"] if given.everything or row["differs"]]
    answer.add_rows("functions", functions[: given.limit], _FUNCTION_COLUMNS, "raise limit")
    return answer


async def _last_good(history: AsyncHistory, session: str) -> str:
    """Return the last successful run of the same job before a session."""
    for group in await history.runs(namespace=session.partition("/")[0]):
        names = [run["session"] for run in group["last"]]
        if session in names:
            before = group["last"][names.index(session) + 1 :]
            good = [run["session"] for run in before if run["status"] == "SUCCEEDED" and run["session"] != session]
            if good:
                return str(good[0])
    raise UsageError(f"no successful run of the same job before {session}: name a baseline session")


_FUNCTION_COLUMNS = ("name", "count_before", "count", "p50_ms_before", "p50_ms", "ratio", "failed_before", "failed")


def _pair(row: Row) -> Row:
    return {"name": row["name"], "before": row["values"][0], "after": row["values"][-1]}


def _function(row: Row) -> Row:
    before, after = row["sessions"][0], row["sessions"][-1]
    old = {f"{name}_before": before[name] for name in ("count", "p50_ms", "failed")}
    return {"name": row["name"], **old, **after}


async def job_trend(history: AsyncHistory, given: JobTrend) -> Answer:
    filters = {"q": given.query, "namespace": given.namespace, "since": given.since}
    given_filters = {name: value for name, value in filters.items() if value}
    groups, total = await history.first_runs(given.limit, **given_filters)
    answer = Answer(given.max_tokens, f"{history.url.rstrip('/')}/runs")
    answer.add(f"{total} jobs, most recent run first; {len(groups)} are shown")
    shown = [_trend(group) for group in groups]
    columns = ("name", "namespace", "runs", "success_rate", "p50_ms", "p95_ms", "slower", "last_failure", "idle_share")
    answer.add_rows("jobs", shown, columns, "narrow the query")
    for group in groups[:1]:
        runs = ("session", "status", "started_ms", "duration_ms", "headline")
        answer.add_rows("last runs of the first job, newest first", group["last"], runs)
    return answer


def _trend(group: Row) -> Row:
    regression, failure = group["regression"], group["last_failure"]
    return group | {
        "slower": f"{regression['ratio']}x" if regression else None,
        "last_failure": f"{'new: ' if failure['new'] else ''}{failure['headline']}" if failure else None,
    }
