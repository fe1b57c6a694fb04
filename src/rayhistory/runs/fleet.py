"""Figures of the fleet: all runs of the sessions that a visitor may see, by day, by namespace and by failure."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from rayhistory.runs.prices import Prices
from rayhistory.runs.run_groups import FAILED, SUCCEEDED, Run, runs_of
from rayhistory.runs.session_summary import SessionSummary

MAX_DAYS = 92
MAX_FAILURES = 20
DAY_MS = 86_400_000


class FleetDay(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that started on one day (UTC)."""

    day: str
    succeeded: int = 0
    failed: int = 0
    other: int = 0
    """Number of runs that were stopped or still run."""


class FleetFailure(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of failure, counted over all jobs."""

    fingerprint: str | None
    code: str
    headline: str
    runs: int
    namespaces: list[str]
    last_session: str
    last_ms: int | None


class FleetFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over all sessions of a namespace, or of all namespaces."""

    namespace: str = ""
    """The namespace; empty for the total."""
    sessions: int = 0
    runs: int = 0
    succeeded: int = 0
    failed: int = 0
    lost_nodes: int = 0
    oom_kills: int = 0
    cpu_hours: float = 0.0
    idle_cpu_hours: float = 0.0
    gpu_hours: float = 0.0
    idle_gpu_hours: float = 0.0
    size_bytes: int = 0
    index_bytes: int = 0
    cost: float | None = None


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    days: list[FleetDay]
    """One entry per day, the oldest first, also for days without runs."""
    failures: list[FleetFailure]
    """Kinds of failures, the most frequent first."""
    namespaces: list[FleetFigures]
    total: FleetFigures


def fleet_of(summaries: Iterable[SessionSummary], now_ms: int, days: int = 30, prices: Prices | None = None) -> Fleet:
    """Return the figures of the sessions that started within the last `days` days (UTC)."""
    days = min(max(days, 1), MAX_DAYS)
    first_ms = (now_ms // DAY_MS - days + 1) * DAY_MS
    recent = [each for each in summaries if first_ms <= (each.started_ms or 0) < now_ms + DAY_MS]
    runs = [run for summary in recent for run in runs_of(summary)]
    by_namespace: dict[str, list[SessionSummary]] = {}
    for summary in recent:
        by_namespace.setdefault(summary.namespace, []).append(summary)
    prices = prices or Prices()
    return Fleet(
        days=_days(runs, first_ms, days),
        failures=_failures(runs),
        namespaces=[figures_of(each, prices, namespace) for namespace, each in sorted(by_namespace.items())],
        total=figures_of(recent, prices),
    )


def figures_of(summaries: list[SessionSummary], prices: Prices, namespace: str = "") -> FleetFigures:
    statuses = Counter(run.job.status for summary in summaries for run in runs_of(summary))
    return FleetFigures(
        namespace=namespace,
        sessions=len(summaries),
        runs=sum(statuses.values()),
        succeeded=statuses[SUCCEEDED],
        failed=statuses[FAILED],
        lost_nodes=sum(each.lost_nodes for each in summaries),
        oom_kills=sum(each.oom_kills for each in summaries),
        cpu_hours=round(sum(each.cpu.allocated for each in summaries), 3),
        idle_cpu_hours=round(sum(each.cpu.idle for each in summaries), 3),
        gpu_hours=round(sum(each.gpu.allocated for each in summaries), 3),
        idle_gpu_hours=round(sum(each.gpu.idle for each in summaries), 3),
        size_bytes=sum(each.size_bytes for each in summaries),
        index_bytes=sum(each.index_bytes for each in summaries),
        cost=prices.cost(summaries),
    )


def _days(runs: list[Run], first_ms: int, days: int) -> list[FleetDay]:
    counts: list[Counter[str]] = [Counter() for _ in range(days)]
    for run in runs:
        place = (run.started_ms - first_ms) // DAY_MS
        if 0 <= place < days:
            counts[place][run.job.status if run.job.status in (SUCCEEDED, FAILED) else "other"] += 1
    return [
        FleetDay(
            day=datetime.fromtimestamp((first_ms + number * DAY_MS) / 1000, UTC).strftime("%Y-%m-%d"),
            succeeded=of_day[SUCCEEDED], failed=of_day[FAILED], other=of_day["other"],
        )
        for number, of_day in enumerate(counts)
    ]  # fmt: skip


def _failures(runs: list[Run]) -> list[FleetFailure]:
    groups: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.started_ms):
        if run.job.status == FAILED and (verdict := run.verdict):
            groups.setdefault(verdict.fingerprint or verdict.code, []).append(run)
    found = [_failure(group) for group in groups.values()]
    return sorted(found, key=lambda each: (-each.runs, -(each.last_ms or 0)))[:MAX_FAILURES]


def _failure(runs: list[Run]) -> FleetFailure:
    last = runs[-1]
    verdict = last.verdict
    assert verdict  # noqa: S101 - only runs with a verdict are grouped
    return FleetFailure(
        fingerprint=verdict.fingerprint,
        code=verdict.code,
        headline=verdict.headline,
        runs=len(runs),
        namespaces=sorted({run.summary.namespace for run in runs}),
        last_session=last.summary.path,
        last_ms=last.started_ms or None,
    )
