"""The page of one group: its runs over time, a matrix of functions and runs, and fingerprints."""

from collections.abc import Mapping

import msgspec

from rayhistory.index.query.run_figures import FunctionFigures
from rayhistory.runs.prices import Prices
from rayhistory.runs.run_groups import SHOWN_RUNS, GroupedRuns, Run, RunGroup, RunSquare, square, summarize_group
from rayhistory.runs.session_summary import SessionDetails

MAX_RUNS = 200
_MAX_FUNCTIONS = 40
_MAX_GROUP_FINGERPRINTS = 50

Identity = tuple[str, str, str]


class FunctionCell(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    failed: int
    p50_ms: float | None
    p95_ms: float | None


class FunctionRow(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one function in each shown run; None if the run did not call it, or if nothing is known."""

    name: str
    runs: list[FunctionCell | None]


class SightedFingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of failure, and the runs that had it."""

    fingerprint: str
    code: str
    headline: str
    runs: int
    first_session: str
    first_ms: int | None
    last_session: str
    last_ms: int | None
    new: bool
    """True if only the newest run had this failure."""


class RunGroupDetails(msgspec.Struct, frozen=True, kw_only=True):
    group: RunGroup
    runs: list[RunSquare]
    """Runs, the newest first, at most 200."""
    matrix_sessions: list[str]
    """The columns of the matrix: the last runs, oldest first."""
    functions: list[FunctionRow]
    fingerprints: list[SightedFingerprint]


def sessions_of_details(group: GroupedRuns) -> list[Identity]:
    """Return the sessions whose details a page needs."""
    return list(dict.fromkeys(run.summary.identity for run in group.runs[-SHOWN_RUNS:]))


def group_details(
    group: GroupedRuns,
    details: Mapping[Identity, SessionDetails],
    prices: Prices = Prices(),  # noqa: B008
) -> RunGroupDetails:
    runs = group.runs
    shown = runs[-SHOWN_RUNS:]
    newest = range(len(runs) - 1, max(-1, len(runs) - 1 - MAX_RUNS), -1)
    return RunGroupDetails(
        group=summarize_group(group, prices),
        runs=[square(runs, place) for place in newest],
        matrix_sessions=[run.summary.path for run in shown],
        functions=_matrix(shown, details),
        fingerprints=_fingerprints(runs, details),
    )


def _matrix(runs: list[Run], details: Mapping[Identity, SessionDetails]) -> list[FunctionRow]:
    columns = [_functions_of(run, details.get(run.summary.identity)) for run in runs]
    total: dict[str, int] = {}
    for column in columns:
        for name, figures in column.items():
            total[name] = total.get(name, 0) + figures.running_ms
    names = sorted(total, key=lambda name: (-total[name], name))[:_MAX_FUNCTIONS]
    return [FunctionRow(name=name, runs=[_cell(column.get(name)) for column in columns]) for name in names]


def _functions_of(run: Run, details: SessionDetails | None) -> dict[str, FunctionFigures]:
    """Return the functions of the run's job, or of the session if it has one job."""
    if details is None:
        return {}
    of_job = {
        each.name: each for each in details.functions if each.job_id is not None and each.job_id == run.job.job_id
    }
    return of_job or {each.name: each for each in details.functions if each.job_id is None}


def _cell(figures: FunctionFigures | None) -> FunctionCell | None:
    if figures is None:
        return None
    return FunctionCell(count=figures.count, failed=figures.failed, p50_ms=figures.p50_ms, p95_ms=figures.p95_ms)


def _fingerprints(runs: list[Run], details: Mapping[Identity, SessionDetails]) -> list[SightedFingerprint]:
    words = {each.fingerprint: each for known in details.values() for each in known.fingerprints}
    verdicts = {run.fingerprint: run.verdict for run in runs if run.fingerprint}
    sights: dict[str, list[Run]] = {}
    for run in runs:
        for fingerprint in run.summary.fingerprints:
            sights.setdefault(fingerprint, []).append(run)
    found = []
    for fingerprint, seen in sights.items():
        verdict, described = verdicts.get(fingerprint), words.get(fingerprint)
        found.append(
            SightedFingerprint(
                fingerprint=fingerprint,
                code=verdict.code if verdict else described.code if described else "",
                headline=verdict.headline if verdict else described.headline if described else "",
                runs=len(seen),
                first_session=seen[0].summary.path,
                first_ms=seen[0].started_ms or None,
                last_session=seen[-1].summary.path,
                last_ms=seen[-1].started_ms or None,
                new=seen[0] is runs[-1] and len(runs) > 1,
            )
        )
    return sorted(found, key=lambda each: -(each.last_ms or 0))[:_MAX_GROUP_FINGERPRINTS]
