"""Runs in groups: all runs of the same job, with their trend."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from rayhistory.runs.prices import Prices
from rayhistory.runs.run_identity import RunIdentity, identify, short_entrypoint
from rayhistory.runs.session_summary import JobHours, RunJob, SessionSummary, SummaryVerdict
from rayhistory.runs.trends import MAX_BASELINE, Regression, find_regression, percentile

SHOWN_RUNS = 20
NEW_AFTER_RUNS = 10
"""A fingerprint is new if none of this many earlier runs had it."""
SUCCEEDED, FAILED, STOPPED, RUNNING = "SUCCEEDED", "FAILED", "STOPPED", "RUNNING"
_STATE_STATUS = {"running": RUNNING, "ended": STOPPED, "vanished": FAILED}


class Run(msgspec.Struct, frozen=True):
    """One job of one session."""

    summary: SessionSummary
    job: RunJob

    @property
    def started_ms(self) -> int:
        return self.job.started_ms or self.summary.started_ms or 0

    @property
    def verdict(self) -> SummaryVerdict | None:
        """The reason why the job failed. If the session has no other jobs, this is the session's verdict."""
        return self.job.verdict if len(self.summary.jobs) > 1 else self.summary.verdict

    @property
    def hours(self) -> SessionSummary | JobHours:
        """Resource hours of the job, or of the session if it has no other jobs."""
        return self.job.hours or JobHours() if len(self.summary.jobs) > 1 else self.summary

    @property
    def headline(self) -> str | None:
        verdict = self.verdict
        return verdict.headline if verdict and self.job.status in (FAILED, STOPPED) else None

    @property
    def fingerprint(self) -> str | None:
        verdict = self.verdict
        return verdict.fingerprint if verdict and self.job.status == FAILED else None

    @property
    def url(self) -> str:
        return f"/s/{self.summary.path}/"


class RunSquare(msgspec.Struct, frozen=True, kw_only=True):
    """One run, as shown in lists."""

    session: str
    """Path of the session: `namespace/cluster/session`."""
    job: str | None
    status: str
    started_ms: int | None
    duration_ms: int | None
    headline: str | None
    url: str
    regression: bool = False
    ray_version: str = ""
    python_version: str = ""
    runtime_env: str = ""
    """A digest of the job's runtime environment."""
    vanished: bool = False
    last_good: str | None = None
    """The last earlier session in which the job succeeded."""


class LastFailure(msgspec.Struct, frozen=True, kw_only=True):
    session: str
    job: str | None
    started_ms: int | None
    headline: str | None
    code: str | None
    fingerprint: str | None
    new: bool
    """True if the ten runs before did not have this failure."""
    url: str


class RunGroup(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of one job."""

    key: str
    namespace: str
    name: str
    kind: str
    title: str
    """The name for people: that of the newest run, without the # that stand for numbers in `name`."""
    runs: int
    last: list[RunSquare]
    """The newest runs, at most 20."""
    success_rate: float | None
    """Share of successful runs. Stopped and running ones do not count."""
    p50_ms: float | None
    p95_ms: float | None
    """The 95th percentile of the durations of successful runs; `p50_ms` is their median."""
    regression: Regression | None
    """The regression of the newest successful run, if any."""
    last_failure: LastFailure | None
    cpu_hours: float
    gpu_hours: float
    """GPU-hours of the nodes. If a session has several jobs, each has a share of them."""
    idle_share: float | None
    """Idle share of GPU-hours, or of CPU-hours if there are no GPUs; None if unknown."""
    cost: float | None
    """Cost in the currency of `--price`; None without prices."""
    last_good: str | None
    """The newest successful session before the newest run."""


class GroupedRuns(msgspec.Struct, frozen=True):
    identity: RunIdentity
    runs: list[Run]
    """Runs of the group, the oldest first."""


def runs_of(summary: SessionSummary) -> list[Run]:
    """Return the runs of a session. A session without jobs counts as a run, so that a lost cluster is listed."""
    if summary.jobs:
        return [Run(summary, job) for job in summary.jobs]
    status = _STATE_STATUS.get(summary.state, STOPPED)
    whole = RunJob(status=status, started_ms=summary.started_ms, ended_ms=summary.ended_ms, inferred=True)
    return [Run(summary, whole)]


def group_runs(summaries: Iterable[SessionSummary], run_key: str = "auto") -> list[GroupedRuns]:
    """Sort all runs into groups."""
    groups: dict[RunIdentity, list[Run]] = {}
    for summary in summaries:
        for run in runs_of(summary):
            groups.setdefault(identify(summary, run.job, run_key), []).append(run)
    for runs in groups.values():
        runs.sort(key=lambda run: (run.started_ms, run.summary.session, run.job.id))
    return [GroupedRuns(identity, runs) for identity, runs in groups.items()]


def summarize_group(group: GroupedRuns, prices: Prices = Prices()) -> RunGroup:  # noqa: B008 - immutable
    runs = group.runs
    finished = Counter(run.job.status for run in runs)
    ended = finished[SUCCEEDED] + finished[FAILED]
    durations = good_durations(runs)
    newest_good = next((place for place in reversed(range(len(runs))) if _is_good(runs[place])), None)
    shown = runs[-SHOWN_RUNS:]
    hours = [run.hours for run in runs]
    return RunGroup(
        key=group.identity.key,
        namespace=group.identity.namespace,
        name=group.identity.name,
        kind=group.identity.kind,
        title=_title(group),
        runs=len(runs),
        last=[square(runs, len(runs) - 1 - number) for number in range(len(shown))],
        success_rate=round(finished[SUCCEEDED] / ended, 4) if ended else None,
        p50_ms=percentile(durations, 0.5),
        p95_ms=percentile(durations, 0.95),
        regression=regression_at(runs, newest_good) if newest_good is not None else None,
        last_failure=_last_failure(runs),
        cpu_hours=round(sum(each.cpu.allocated for each in hours), 3),
        gpu_hours=round(sum(each.gpu.allocated for each in hours), 3),
        idle_share=idle_share(hours),
        cost=prices.cost(hours),
        last_good=_last_good(runs, len(runs) - 1),
    )


def _title(group: GroupedRuns) -> str:
    newest = group.runs[-1].job.entrypoint
    return short_entrypoint(newest) if group.identity.kind == "entrypoint" else group.identity.name


def square(runs: list[Run], place: int) -> RunSquare:
    run = runs[place]
    return RunSquare(
        session=run.summary.path,
        job=run.job.id or None,
        status=run.job.status,
        started_ms=run.started_ms or None,
        duration_ms=run.job.duration_ms,
        headline=run.headline,
        url=run.url,
        regression=regression_at(runs, place) is not None,
        ray_version=run.summary.ray_version,
        python_version=run.summary.python_version,
        runtime_env=run.job.runtime_env,
        vanished=run.summary.state == "vanished",
        last_good=_last_good(runs, place),
    )


def good_durations(runs: Iterable[Run]) -> list[float]:
    return [float(run.job.duration_ms) for run in runs if _is_good(run) and run.job.duration_ms is not None]


def regression_at(runs: list[Run], place: int) -> Regression | None:
    """Compare one run with earlier successful runs."""
    run = runs[place]
    if not _is_good(run) or run.job.duration_ms is None:
        return None
    return find_regression(run.job.duration_ms, good_durations(runs[max(0, place - 2 * MAX_BASELINE) : place]))


def is_new_fingerprint(fingerprint: str | None, earlier: list[Run]) -> bool:
    """Return whether none of the last earlier runs had this failure."""
    seen = {each for run in earlier[-NEW_AFTER_RUNS:] for each in run.summary.fingerprints}
    return fingerprint is not None and fingerprint not in seen


def idle_share(runs: Iterable[SessionSummary | JobHours]) -> float | None:
    """Return the idle share of GPUs, or of CPUs if there are no GPUs."""
    everything = list(runs)
    for hours in ([each.gpu for each in everything], [each.cpu for each in everything]):
        if allocated := sum(each.allocated for each in hours):
            return round(sum(each.idle for each in hours) / allocated, 4)
    return None


def _is_good(run: Run) -> bool:
    return run.job.status == SUCCEEDED


def _last_failure(runs: list[Run]) -> LastFailure | None:
    for place in reversed(range(len(runs))):
        run = runs[place]
        if run.job.status == FAILED:
            verdict = run.verdict
            return LastFailure(
                session=run.summary.path,
                job=run.job.id or None,
                started_ms=run.started_ms or None,
                headline=run.headline,
                code=verdict.code if verdict else None,
                fingerprint=run.fingerprint,
                new=is_new_fingerprint(run.fingerprint, runs[:place]),
                url=run.url,
            )
    return None


def _last_good(runs: list[Run], place: int) -> str | None:
    """Return the session of the last successful run before this one. Other runs of the same session do not count."""
    own = runs[place].summary.identity
    earlier = (runs[number] for number in range(place - 1, -1, -1))
    return next((run.summary.path for run in earlier if _is_good(run) and run.summary.identity != own), None)


SORT_KEYS: Mapping[str, Callable[[RunGroup], Any]] = {
    "started": lambda group: group.last[0].started_ms or 0,
    "name": lambda group: (group.name, group.namespace),
    "runs": lambda group: group.runs,
    "success_rate": lambda group: 2.0 if group.success_rate is None else group.success_rate,
    "p50_ms": lambda group: group.p50_ms or 0.0,
    "p95_ms": lambda group: group.p95_ms or 0.0,
    "regression": lambda group: group.regression.ratio if group.regression else 0.0,
    "cpu_hours": lambda group: group.cpu_hours,
    "gpu_hours": lambda group: group.gpu_hours,
    "idle_share": lambda group: group.idle_share or 0.0,
    "cost": lambda group: group.cost or 0.0,
}
SORTS = tuple(name for column in SORT_KEYS for name in (column, f"-{column}"))
DEFAULT_SORT = "-started"


def sort_groups(groups: list[RunGroup], sort: str = DEFAULT_SORT) -> list[RunGroup]:
    """Sort groups. Equal groups are sorted by name."""
    by_name = sorted(groups, key=SORT_KEYS["name"])
    return sorted(by_name, key=SORT_KEYS[sort.lstrip("-")], reverse=sort.startswith("-"))
