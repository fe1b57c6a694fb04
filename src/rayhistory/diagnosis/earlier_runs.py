"""What a diagnosis compares a session with: earlier runs of the same owner or entry point, where they are known."""

import msgspec

from rayhistory.diagnosis.findings import Finding, SkippedRule

COMPARED_RUNS = 10
_NEEDS = ("new_fingerprint", "regression")


class EarlierRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The last runs before this one, at most ten."""

    runs: int = 0
    fingerprints: frozenset[str] = frozenset()
    """Of their failures."""


def skipped_comparisons(earlier: EarlierRuns | None) -> list[SkippedRule]:
    """Return the comparisons that could not be made."""
    if earlier is None:
        return [SkippedRule(code, "earlier runs of the same job are not compared yet") for code in _NEEDS]
    if not earlier.runs:
        return [SkippedRule(code, "there is no earlier run of the same job") for code in _NEEDS]
    return [SkippedRule("regression", "run times are compared on the page of runs")]


def with_novelty(finding: Finding, earlier: EarlierRuns | None) -> Finding:
    """Say whether an exception has been seen in earlier runs."""
    if earlier is None or not earlier.runs or not finding.fingerprint:
        return finding
    is_new = finding.fingerprint not in earlier.fingerprints
    runs = f"the last {earlier.runs} runs" if earlier.runs > 1 else "the last run"
    text = f"New: {runs} of the same job did not have it." if is_new else f"Not new: {runs} of the same job had it too."
    return msgspec.structs.replace(finding, detail=f"{finding.detail} {text}".strip())
