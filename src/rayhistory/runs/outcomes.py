"""Compare a run with earlier ones: it failed, got slower, recovered, or vanished.

Used for notifications and for the diagnosis. Pure functions of runs.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from rayhistory.diagnosis.earlier_runs import COMPARED_RUNS, EarlierRuns, SlowerRun
from rayhistory.runs.run_groups import FAILED, SUCCEEDED, GroupedRuns, Run, is_new_fingerprint, regression_at
from rayhistory.runs.trends import Regression

OutcomeKind = Literal["failed", "regressed", "recovered", "vanished"]


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A reason to look at a run."""

    kind: OutcomeKind
    headline: str | None = None
    new_fingerprint: bool = False
    """For failures: the ten runs before did not have this failure."""
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
    """Return whether the last run that succeeded or failed has failed."""
    statuses = (run.job.status for run in reversed(earlier))
    return next((status for status in statuses if status in (SUCCEEDED, FAILED)), SUCCEEDED) == FAILED


def earlier_runs(groups: Iterable[GroupedRuns], identity: tuple[str, str, str]) -> EarlierRuns:
    """Return the earlier runs of the session's jobs."""
    runs, fingerprints, slower = 0, set[str](), list[SlowerRun]()
    for group in groups:
        places = [place for place, run in enumerate(group.runs) if run.summary.identity == identity]
        if not places:
            continue
        before = group.runs[max(0, places[0] - COMPARED_RUNS) : places[0]]
        runs += len(before)
        fingerprints.update(each for run in before for each in run.summary.fingerprints)
        slower += [found for place in places if (found := _slower(group, place))]
    return EarlierRuns(runs=runs, fingerprints=frozenset(fingerprints), slower=tuple(slower))


def _slower(group: GroupedRuns, place: int) -> SlowerRun | None:
    regression, run = regression_at(group.runs, place), group.runs[place]
    if regression is None:
        return None
    return SlowerRun(
        job=run.job.id, name=group.identity.name, started_ms=run.started_ms or None,
        duration_ms=regression.duration_ms, baseline_ms=regression.baseline_ms, runs=regression.runs,
    )  # fmt: skip
