"""Compare a diagnosis with earlier runs of the same jobs.

This is done at reading time, because the list of runs grows.
"""

import msgspec

from rayhistory.diagnosis.findings import Counts, Diagnosis, Finding, SkippedRule
from rayhistory.diagnosis.headlines import duration, one_line, plural

COMPARED_RUNS = 10
_NEEDS = ("new_fingerprint", "regression")
_MAX_SLOWER_RUNS = 10


class SlowerRun(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the session that took longer than its earlier successful runs, beyond their spread."""

    job: str
    name: str
    started_ms: int | None = None
    duration_ms: int
    baseline_ms: float
    """The median of the earlier successful runs."""
    runs: int
    """Number of these runs."""


class EarlierRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The last runs of the session's jobs before this session, at most ten of each job."""

    runs: int = 0
    fingerprints: frozenset[str] = frozenset()
    """Fingerprints of their failures."""
    slower: tuple[SlowerRun, ...] = ()


def skipped_comparisons(earlier: EarlierRuns | None) -> list[SkippedRule]:
    """Return the comparisons that could not be made."""
    if earlier is None:
        return [SkippedRule(code, "earlier runs of the same job were not compared") for code in _NEEDS]
    if not earlier.runs:
        return [SkippedRule(code, "there is no earlier run of the same job") for code in _NEEDS]
    return []


def with_earlier_runs(diagnosis: Diagnosis, earlier: EarlierRuns | None) -> Diagnosis:
    """Add which failures are new, and which jobs took longer than usual."""
    findings = [_with_novelty(finding, earlier) for finding in diagnosis.findings]
    failures = 1 + max((place for place, finding in enumerate(findings) if finding.root), default=-1)
    slower = [_regression(run) for run in earlier.slower[:_MAX_SLOWER_RUNS]] if earlier else []
    skipped = [each for each in diagnosis.skipped if each.code not in _NEEDS]
    return msgspec.structs.replace(
        diagnosis,
        findings=[*findings[:failures], *slower, *findings[failures:]],
        skipped=[*skipped, *skipped_comparisons(earlier)],
    )


def _with_novelty(finding: Finding, earlier: EarlierRuns | None) -> Finding:
    """Add whether earlier runs had the same exception."""
    if earlier is None or not earlier.runs or not finding.fingerprint or not finding.root:
        return finding
    is_new = finding.fingerprint not in earlier.fingerprints
    runs = f"the last {earlier.runs} runs" if earlier.runs > 1 else "the last run"
    had = "did not have" if is_new else "had"
    text = f"{'New' if is_new else 'Not new'}: {runs} of the same job {had} this failure."
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
