"""Comparison with earlier runs of the same job."""

import msgspec

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.earlier_runs import EarlierRuns
from rayhistory.diagnosis.findings import Diagnosis
from rayhistory.diagnosis.rules.exceptions.raised import session_with_task

FACTS = session_with_task('User exception:\n  File "/app/train.py", line 3, in train\n    fail()\nValueError: no data')


def compared(earlier: EarlierRuns | None) -> Diagnosis:
    return diagnose(msgspec.structs.replace(FACTS, earlier=earlier))


def test_exception_that_earlier_runs_did_not_have_is_new() -> None:
    found = compared(EarlierRuns(runs=10, fingerprints=frozenset({"another"})))
    assert "New: the last 10 runs of the same job did not have it." in found.findings[0].detail


def test_exception_that_earlier_runs_had_is_not_new() -> None:
    known = compared(None).findings[0].fingerprint or ""
    found = compared(EarlierRuns(runs=1, fingerprints=frozenset({known})))
    assert "Not new: the last run of the same job had it too." in found.findings[0].detail


def test_comparison_without_earlier_runs_is_skipped_with_its_reason() -> None:
    assert {each.code for each in compared(None).skipped} >= {"new_fingerprint", "regression"}
    reasons = {each.code: each.reason for each in compared(EarlierRuns()).skipped}
    assert reasons["new_fingerprint"] == "there is no earlier run of the same job"
