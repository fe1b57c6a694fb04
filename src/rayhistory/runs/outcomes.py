"""What a finished run means to those who wait for it: it failed, got slower, works again, or was lost.

Notifications are made from this. A pure function of the run and the runs before it.
"""

from typing import Literal

import msgspec

from rayhistory.runs.run_groups import FAILED, SUCCEEDED, Run, is_new_fingerprint, regression_at
from rayhistory.runs.trends import Regression

OutcomeKind = Literal["failed", "regressed", "recovered", "vanished"]


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Why somebody should look at a run."""

    kind: OutcomeKind
    headline: str | None = None
    new_fingerprint: bool = False
    """For failures: the ten runs before did not fail like this."""
    regression: Regression | None = None


def outcomes_of(run: Run, earlier: list[Run]) -> list[RunOutcome]:
    """Return what is worth telling about a finished run; `earlier` are the runs of its group before it, oldest first.

    A run that was stopped or still runs tells nothing. A lost session is reported as that, and not as a failure.
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
