"""Compare a run with earlier ones: it failed, got slower, recovered, or vanished.

Used for notifications and for the diagnosis. Pure functions of runs.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from rayhistory.diagnosis.earlier_runs import COMPARED_RUNS, EarlierRuns, JobHistory, SlowerRun
from rayhistory.runs.run_groups import FAILED, SUCCEEDED, GroupedRuns, Run, is_new_fingerprint, regression_at
from rayhistory.runs.session_summary import RunJob
from rayhistory.runs.trends import Regression

OutcomeKind = Literal["failed", "regressed", "recovered", "vanished"]


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A failure, slowdown, recovery or loss of a run, compared with earlier runs."""

    kind: OutcomeKind
    headline: str | None = None
    new_fingerprint: bool = False
    """True for a failure that the ten runs before did not have."""
    regression: Regression | None = None


def outcomes_of(run: Run, earlier: list[Run]) -> list[RunOutcome]:
    """Return the outcomes of a finished run. `earlier` are the earlier runs of its group, oldest first.

    A run that was stopped or still runs has none. A lost session is reported as lost, not as a failure.
    """
    if run.summary.state == "vanished" and run.job.inferred:
        return [RunOutcome(kind="vanished", headline=run.headline)]
    if not run.summary.is_over and run.job.status not in (SUCCEEDED, FAILED):
        return []
    if run.job.status == FAILED:
        is_new = is_new_fingerprint(run.fingerprint, earlier)
        return [RunOutcome(kind="failed", headline=run.headline, new_fingerprint=is_new)]
    if run.job.status != SUCCEEDED:
        return []
    found = [RunOutcome(kind="recovered")] if _failed_before(earlier) else []
    if regression := regression_at([*earlier, run], len(earlier)):
        found.append(RunOutcome(kind="regressed", regression=regression))
    return found


def _failed_before(earlier: list[Run]) -> bool:
    """Return whether the last completed run failed. Stopped and running runs are skipped."""
    statuses = (run.job.status for run in reversed(earlier))
    return next((status for status in statuses if status in (SUCCEEDED, FAILED)), SUCCEEDED) == FAILED


def earlier_runs(groups: Iterable[GroupedRuns], identity: tuple[str, str, str]) -> EarlierRuns:
    """Return the earlier runs of the session's jobs."""
    runs, fingerprints, slower = 0, set[str](), list[SlowerRun]()
    jobs: dict[str, JobHistory] = {}
    for group in groups:
        places = [place for place, run in enumerate(group.runs) if run.summary.identity == identity]
        if not places:
            continue
        before = group.runs[max(0, places[0] - COMPARED_RUNS) : places[0]]
        history = JobHistory(len(before), frozenset(each for run in before for each in run.summary.fingerprints))
        jobs |= {id_: history for place in places for id_ in _ids(group.runs[place].job)}
        runs += history.runs
        fingerprints |= history.fingerprints
        slower += [found for place in places if (found := _slower(group, place))]
    return EarlierRuns(runs=runs, fingerprints=frozenset(fingerprints), slower=tuple(slower), jobs=jobs)


def _ids(job: RunJob) -> list[str]:
    return [id_ for id_ in (job.id, job.job_id) if id_]


def _slower(group: GroupedRuns, place: int) -> SlowerRun | None:
    regression, run = regression_at(group.runs, place), group.runs[place]
    if regression is None:
        return None
    return SlowerRun(
        job=run.job.id, name=group.identity.name, started_ms=run.started_ms or None,
        duration_ms=regression.duration_ms, baseline_ms=regression.baseline_ms, runs=regression.runs,
    )  # fmt: skip
