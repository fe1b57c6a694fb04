"""A notification about one run. Its id is the same on every server and after every restart."""

import hashlib
from collections.abc import Collection, Iterable, Mapping

import msgspec

from rayhistory.runs.outcomes import OutcomeKind, outcomes_of
from rayhistory.runs.run_groups import GroupedRuns, group_runs
from rayhistory.runs.run_parts import Identity
from rayhistory.runs.session_summary import SessionSummary

MAX_AGE_MS = 30 * 86_400_000
"""Maximum age of a run that is reported. Marks of sent notifications are kept twice as long."""


class Notification(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    kind: OutcomeKind
    namespace: str
    cluster: str
    session: str
    job: str = ""
    name: str = ""
    """The owner, name or entrypoint that the runs of this group have in common."""
    at_ms: int = 0
    duration_ms: int | None = None
    baseline_ms: int | None = None
    """For regressions: the median of the earlier successful runs."""
    code: str = ""
    """The code of the finding that explains a failure."""
    headline: str = ""
    """Text from the cluster. Sent only if a rule allows it."""
    new_failure: bool = False
    """True if none of the last earlier runs of the same job had this failure."""
    path: str = ""
    """Path of the session on the history server."""

    @property
    def subject(self) -> str:
        return f"{self.namespace}/{self.cluster}/{self.session}"


def notifications_for(
    summaries: Mapping[Identity, SessionSummary], *, run_key: str, since_ms: int, known: Collection[str]
) -> list[Notification]:
    """Return the notifications about all runs that ended since a time, except those of `known` sessions."""
    wanted = {
        summary.identity
        for summary in summaries.values()
        if summary.is_over and (summary.ended_ms or summary.started_ms or 0) >= since_ms and summary.path not in known
    }
    return [
        each
        for group in group_runs(summaries.values(), run_key)
        if any(run.summary.identity in wanted for run in group.runs)
        for each in _of_group(group, wanted)
    ]


def _of_group(group: GroupedRuns, wanted: set[Identity]) -> Iterable[Notification]:
    for place, run in enumerate(group.runs):
        if run.summary.identity not in wanted:
            continue
        summary, verdict = run.summary, run.verdict
        for outcome in outcomes_of(run, group.runs[:place]):
            failed = outcome.kind in ("failed", "vanished")
            yield Notification(
                id=notification_id(outcome.kind, summary.path, run.job.id),
                kind=outcome.kind,
                namespace=summary.namespace,
                cluster=summary.cluster,
                session=summary.session,
                job=run.job.id,
                name=group.identity.name,
                at_ms=run.job.ended_ms or summary.ended_ms or run.started_ms,
                duration_ms=run.job.duration_ms,
                baseline_ms=round(outcome.regression.baseline_ms) if outcome.regression else None,
                code=verdict.code if verdict and failed else "",
                headline=outcome.headline or "",
                new_failure=outcome.new_fingerprint,
                path=run.url,
            )


def notification_id(kind: str, session: str, job: str) -> str:
    return hashlib.sha256("\n".join((kind, session, job)).encode()).hexdigest()[:32]
