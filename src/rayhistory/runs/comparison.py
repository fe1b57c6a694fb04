"""Compare sessions: verdicts, environment, functions, metrics and fingerprints. Pure functions of their summaries."""

import math
from collections.abc import Sequence

import msgspec

from rayhistory.index.query.run_figures import FunctionFigures
from rayhistory.runs.session_summary import (
    NodeType,
    SessionDetails,
    SessionSummary,
    StoredSummary,
    SummaryMetric,
    SummaryVerdict,
)
from rayhistory.runs.trends import MIN_RATIO, SPREADS

MAX_SESSIONS = 10
_MAX_FUNCTIONS = 200
_MAX_VALUES = 500
_MIN_DIFFERENCE_MS = 1.0
_MEDIAN_ERROR = 1.2533
"""The standard error of a median, as a multiple of the standard error of the mean."""
_P95_SIGMAS = 1.645


class ComparedSession(msgspec.Struct, frozen=True, kw_only=True):
    session: str
    url: str
    state: str
    status: str
    """FAILED if a job has failed, else RUNNING, STOPPED or SUCCEEDED."""
    verdict: SummaryVerdict | None
    started_ms: int | None
    duration_ms: int | None
    """Duration of the session's longest job, or of the session if it has no jobs."""
    tasks: int
    failed_tasks: int
    nodes: int
    cpu_hours: float
    gpu_hours: float
    cpu_idle_hours: float
    gpu_idle_hours: float


class ComparedValue(msgspec.Struct, frozen=True, kw_only=True):
    """One property of the environment by session; None if a session does not have it."""

    name: str
    values: list[str | None]
    differs: bool


class ComparedFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a function in one session."""

    count: int = 0
    failed: int = 0
    p50_ms: float | None = None
    p95_ms: float | None = None
    waiting_ms: int = 0
    ratio: float | None = None
    """Median in this session, divided by the median in the first session."""
    beyond_spread: bool = False
    """True if the median differs from that of the first session by at least 20 %, and by more than chance explains."""


class ComparedFunction(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    sessions: list[ComparedFigures]
    differs: bool
    """True if only some sessions called the function, or if failures or medians differ."""


class ComparedFingerprint(msgspec.Struct, frozen=True, kw_only=True):
    fingerprint: str
    code: str
    headline: str
    sessions: list[bool]
    """For each session, whether it had this failure."""
    new: bool
    """True if the last session had this failure and the first had not."""
    gone: bool
    """True if the first session had this failure and the last had not."""


class ComparedMetric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of all sessions, with times that count from the start of each session."""

    name: str
    sessions: list[SummaryMetric | None]


class SessionComparison(msgspec.Struct, frozen=True, kw_only=True):
    sessions: list[ComparedSession]
    environment: list[ComparedValue]
    functions: list[ComparedFunction]
    fingerprints: list[ComparedFingerprint]
    metrics: list[ComparedMetric]


def compare_sessions(stored: Sequence[StoredSummary]) -> SessionComparison:
    """Compare sessions with the first one."""
    summaries, details = [each.summary for each in stored], [each.details for each in stored]
    return SessionComparison(
        sessions=[_session(summary) for summary in summaries],
        environment=_environment(summaries, details),
        functions=_functions(details),
        fingerprints=_fingerprints(details),
        metrics=_metrics(details),
    )


def _session(summary: SessionSummary) -> ComparedSession:
    durations = [job.duration_ms for job in summary.jobs if job.duration_ms is not None]
    whole = None
    if summary.started_ms is not None and summary.ended_ms is not None and summary.ended_ms >= summary.started_ms:
        whole = summary.ended_ms - summary.started_ms
    statuses = {job.status for job in summary.jobs}
    ranked = [status for status in ("FAILED", "RUNNING", "PENDING", "STOPPED", "SUCCEEDED") if status in statuses]
    return ComparedSession(
        session=summary.path,
        url=f"/s/{summary.path}/",
        state=summary.state,
        status=ranked[0] if ranked else "FAILED" if summary.state == "vanished" else "",
        verdict=summary.verdict,
        started_ms=summary.started_ms,
        duration_ms=max(durations, default=whole),
        tasks=summary.tasks,
        failed_tasks=summary.failed_tasks,
        nodes=summary.nodes,
        cpu_hours=round(summary.cpu.allocated, 3),
        gpu_hours=round(summary.gpu.allocated, 3),
        cpu_idle_hours=round(summary.cpu.idle, 3),
        gpu_idle_hours=round(summary.gpu.idle, 3),
    )


def _environment(summaries: list[SessionSummary], details: list[SessionDetails]) -> list[ComparedValue]:
    plain: dict[str, list[str | None]] = {
        "Ray": [each.ray_version or None for each in summaries],
        "Python": [each.python_version or None for each in summaries],
        "Runtime environment": [_digests(each) for each in summaries],
        "Entry points": [_entrypoints(each) for each in summaries],
        "CPUs": [_total(each, "CPU") for each in details],
        "GPUs": [_total(each, "GPU") for each in details],
    }
    rows = [_value(name, values) for name, values in plain.items() if any(values)]
    rows += _named("package", [dict(map(_package, each.packages)) for each in details])
    rows += _named("variable", [dict.fromkeys(each.env_vars, "set") for each in details])
    rows += _named("nodes", [{_node_type(kind): str(kind.count) for kind in each.node_types} for each in details])
    return rows[:_MAX_VALUES]


def _value(name: str, values: list[str | None]) -> ComparedValue:
    return ComparedValue(name=name, values=values, differs=len(set(values)) > 1)


def _named(kind: str, by_session: list[dict[str, str]]) -> list[ComparedValue]:
    names = sorted({name for values in by_session for name in values})
    return [_value(f"{kind} {name}", [values.get(name) for values in by_session]) for name in names]


def _digests(summary: SessionSummary) -> str | None:
    return ", ".join(sorted({job.runtime_env for job in summary.jobs if job.runtime_env})) or None


def _entrypoints(summary: SessionSummary) -> str | None:
    return "\n".join(dict.fromkeys(job.entrypoint for job in summary.jobs if job.entrypoint))[:1000] or None


def _total(details: SessionDetails, resource: str) -> str | None:
    total = sum(kind.count * kind.resources.get(resource, 0.0) for kind in details.node_types)
    return f"{total:g}" if total else None


def _package(text: str) -> tuple[str, str]:
    """Split `torch==2.9` into name and version."""
    for mark in ("==", ">=", "<=", "~=", "@", ">", "<"):
        name, found, version = text.partition(mark)
        if found:
            return name.strip(), (version.strip() if mark == "==" else f"{mark}{version.strip()}")
    return text.strip(), "any"


def _node_type(kind: NodeType) -> str:
    resources = ", ".join(f"{amount:g} {name}" for name, amount in kind.resources.items())
    return f"{kind.name} ({resources})" if resources else kind.name


def _functions(details: list[SessionDetails]) -> list[ComparedFunction]:
    by_session = [{each.name: each for each in known.functions if each.job_id is None} for known in details]
    total: dict[str, int] = {}
    for functions in by_session:
        for name, figures in functions.items():
            total[name] = max(total.get(name, 0), figures.running_ms)
    names = sorted(total, key=lambda name: (-total[name], name))[:_MAX_FUNCTIONS]
    return [_function(name, [functions.get(name) for functions in by_session]) for name in names]


def _function(name: str, by_session: list[FunctionFigures | None]) -> ComparedFunction:
    first = by_session[0]
    compared = [_figures(each, first if number else None) for number, each in enumerate(by_session)]
    missing = any(each is None for each in by_session)
    failures = {each.failed > 0 for each in by_session if each}
    differs = missing or len(failures) > 1 or any(each.beyond_spread for each in compared)
    return ComparedFunction(name=name, sessions=compared, differs=differs)


def _figures(figures: FunctionFigures | None, first: FunctionFigures | None) -> ComparedFigures:
    if figures is None:
        return ComparedFigures()
    ratio = None
    if first and first.p50_ms and figures.p50_ms is not None:
        ratio = round(figures.p50_ms / first.p50_ms, 3)
    return ComparedFigures(
        count=figures.count,
        failed=figures.failed,
        p50_ms=figures.p50_ms,
        p95_ms=figures.p95_ms,
        waiting_ms=figures.waiting_ms,
        ratio=ratio,
        beyond_spread=first is not None and is_beyond_spread(first, figures),
    )


def is_beyond_spread(first: FunctionFigures, second: FunctionFigures) -> bool:
    """Return whether two medians differ by at least 20 % and by more than chance explains.

    Chance explains three standard errors, which are estimated from p50 and p95.
    """
    if first.p50_ms is None or second.p50_ms is None:
        return False
    low, high = sorted((first.p50_ms, second.p50_ms))
    if high - low < _MIN_DIFFERENCE_MS or high < low * MIN_RATIO:
        return False
    return high - low > SPREADS * math.hypot(_median_error(first), _median_error(second))


def _median_error(figures: FunctionFigures) -> float:
    sigma = max(0.0, (figures.p95_ms or 0.0) - (figures.p50_ms or 0.0)) / _P95_SIGMAS
    return _MEDIAN_ERROR * sigma / math.sqrt(max(1, figures.count - figures.failed))


def _fingerprints(details: list[SessionDetails]) -> list[ComparedFingerprint]:
    words = {each.fingerprint: each for known in details for each in known.fingerprints}
    seen = [{each.fingerprint for each in known.fingerprints} for known in details]
    found = []
    for fingerprint, each in words.items():
        had = [fingerprint in fingerprints for fingerprints in seen]
        found.append(
            ComparedFingerprint(
                fingerprint=fingerprint, code=each.code, headline=each.headline, sessions=had,
                new=had[-1] and not had[0], gone=had[0] and not had[-1],
            )
        )  # fmt: skip
    return sorted(found, key=lambda each: (not each.new, not each.gone, each.code))


def _metrics(details: list[SessionDetails]) -> list[ComparedMetric]:
    by_session = [{metric.name: metric for metric in known.metrics} for known in details]
    names = sorted({name for metrics in by_session for name in metrics})
    return [ComparedMetric(name=name, sessions=[metrics.get(name) for metrics in by_session]) for name in names]
