"""Compare a diagnosis with earlier runs of the same jobs.

This is done at reading time, because the list of runs grows.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from rayhistory.diagnosis.findings import Counts, Diagnosis, Finding, SkippedRule
from rayhistory.diagnosis.headlines import duration, one_line, plural

COMPARED_RUNS = 10
COMPARISON_CODES = ("new_fingerprint", "regression")
_MAX_SLOWER_RUNS = 10
_BUILD_COMMAND = "`rayhistory index --missing`"


class SlowerRun(msgspec.Struct, frozen=True, kw_only=True):
    """A job that took longer than its earlier successful runs, by more than those runs differ from each other."""

    job: str
    name: str
    started_ms: int | None = None
    duration_ms: int
    baseline_ms: float
    """The median of the earlier successful runs."""
    runs: int
    """Number of earlier successful runs."""


class JobHistory(NamedTuple):
    """The last runs of one job before the session that is diagnosed."""

    runs: int = 0
    fingerprints: frozenset[str] = frozenset()
    """Fingerprints of the failures in these runs."""


class EarlierRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The last runs of the session's jobs before this session, at most ten of each job."""

    runs: int = 0
    fingerprints: frozenset[str] = frozenset()
    """Fingerprints of the failures in these runs."""
    slower: tuple[SlowerRun, ...] = ()
    jobs: dict[str, JobHistory] = {}
    """The earlier runs of each job of the session, by its submission id and by its job id."""
    unsummarized: int = 0
    """Number of sessions without a summary, whose runs are unknown. This session may be one of them."""

    def of_jobs(self, ids: Iterable[str]) -> JobHistory | None:
        """Return the earlier runs of one of these jobs: the job with the most earlier runs.

        If none of the ids is known, return the earlier runs of the only job, or None if the session has several jobs.
        """
        histories = [self.jobs[id_] for id_ in ids if id_ in self.jobs]
        if histories:
            return max(histories, key=lambda each: each.runs)
        return JobHistory(self.runs, self.fingerprints) if len(set(self.jobs.values())) <= 1 else None


def skipped_comparisons(earlier: EarlierRuns | None) -> list[SkippedRule]:
    """Return the comparisons with earlier runs that were skipped, with the reason."""
    if earlier is None:
        return [SkippedRule(code, "earlier runs of the same job were not compared") for code in COMPARISON_CODES]
    if not earlier.runs and earlier.unsummarized:
        unknown = plural(earlier.unsummarized, "session")
        reason = f"no earlier run of the same job is known ({unknown} without a summary: {_BUILD_COMMAND} builds them)"
        return [SkippedRule(code, reason) for code in COMPARISON_CODES]
    if not earlier.runs:
        return [SkippedRule(code, "there is no earlier run of the same job") for code in COMPARISON_CODES]
    return []


def with_earlier_runs(diagnosis: Diagnosis, earlier: EarlierRuns | None) -> Diagnosis:
    """Mark new failures in a diagnosis, and add a finding for each job that took longer than usual."""
    findings = [_with_novelty(finding, earlier) for finding in diagnosis.findings]
    failures = 1 + max((place for place, finding in enumerate(findings) if finding.root), default=-1)
    slower = [_regression(run) for run in earlier.slower[:_MAX_SLOWER_RUNS]] if earlier else []
    skipped = [each for each in diagnosis.skipped if each.code not in COMPARISON_CODES]
    return msgspec.structs.replace(
        diagnosis,
        findings=[*findings[:failures], *slower, *findings[failures:]],
        skipped=[*skipped, *skipped_comparisons(earlier)],
    )


def _with_novelty(finding: Finding, earlier: EarlierRuns | None) -> Finding:
    """Mark a finding as new if no earlier run of its job had a failure with the same fingerprint."""
    history = earlier.of_jobs(finding.subjects) if earlier else None
    if history is None or not history.runs or not finding.fingerprint or not finding.root:
        return finding
    is_new = finding.fingerprint not in history.fingerprints
    one = "none" if is_new else "at least one"
    which = f"{one} of the last {history.runs} runs" if history.runs > 1 else "the last run"
    had = "did not have" if is_new and history.runs == 1 else "had"
    text = f"{'New' if is_new else 'Not new'}: {which} of the same job {had} this failure."
    return msgspec.structs.replace(finding, new=is_new, detail=f"{finding.detail} {text}".strip())


def _regression(run: SlowerRun) -> Finding:
    ratio = run.duration_ms / max(run.baseline_ms, 1)
    name = one_line(run.name or run.job, 100)
    headline = f"{name} took {duration(run.duration_ms)}, {ratio:.1f} times as long as usual"
    return Finding(
        code="regression",
        severity="warning",
        headline=one_line(headline),
        detail=f"The median of the {plural(run.runs, 'earlier successful run')} is {duration(round(run.baseline_ms))}. "
        "This run is longer by more than 20 %, 10 s and three times the spread of those runs.",
        confidence="likely",
        root=False,
        first_ms=run.started_ms,
        last_ms=run.started_ms,
        counts=Counts(jobs=1),
        suggestion="Compare this session with the last successful run: versions, packages, nodes and functions.",
        subjects=[run.job] if run.job else [],
    )
