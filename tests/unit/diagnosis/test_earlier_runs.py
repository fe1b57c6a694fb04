"""Comparison with earlier runs of the same job."""

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.earlier_runs import EarlierRuns, JobHistory, SlowerRun, with_earlier_runs
from rayhistory.diagnosis.findings import Diagnosis
from rayhistory.diagnosis.rules.exceptions.raised import session_with_task

FACTS = session_with_task('User exception:\n  File "/app/train.py", line 3, in train\n    fail()\nValueError: no data')
SLOWER = SlowerRun(job="raysubmit_1", name="nightly", duration_ms=900_000, baseline_ms=600_000.0, runs=5)


def compared(earlier: EarlierRuns | None) -> Diagnosis:
    return with_earlier_runs(diagnose(FACTS), earlier)


def test_exception_that_earlier_runs_did_not_have_is_new() -> None:
    found = compared(EarlierRuns(runs=10, fingerprints=frozenset({"another"}))).findings[0]
    assert found.new
    assert "New: none of the last 10 runs of the same job had this failure." in found.detail


def test_exception_that_earlier_runs_had_is_not_new() -> None:
    known = compared(None).findings[0].fingerprint or ""
    found = compared(EarlierRuns(runs=1, fingerprints=frozenset({known}))).findings[0]
    assert found.new is False
    assert "Not new: the last run of the same job had this failure." in found.detail


def test_runs_of_other_jobs_of_the_session_do_not_count() -> None:
    """The job of the exception has never run before, another job of the session has."""
    histories = {"nightly": JobHistory(), "another": JobHistory(5, frozenset({"x"}))}
    found = compared(EarlierRuns(runs=5, fingerprints=frozenset({"x"}), jobs=histories)).findings[0]
    assert found.new is None
    assert "the same job" not in found.detail


def test_failure_of_unknown_jobs_is_compared_only_if_the_session_has_one_job() -> None:
    one, two = {"a": JobHistory(5)}, {"a": JobHistory(5), "b": JobHistory(2)}
    assert compared(EarlierRuns(runs=5, jobs=one)).findings[0].new
    assert compared(EarlierRuns(runs=7, jobs=two)).findings[0].new is None


def test_comparison_without_earlier_runs_is_skipped_with_its_reason() -> None:
    assert {each.code for each in compared(None).skipped} >= {"new_fingerprint", "regression"}
    reasons = {each.code: each.reason for each in compared(EarlierRuns()).skipped}
    assert reasons["new_fingerprint"] == "there is no earlier run of the same job"
    assert compared(EarlierRuns()).findings[0].new is None


def test_earlier_runs_are_unknown_while_sessions_have_no_summary() -> None:
    reasons = {each.code: each.reason for each in compared(EarlierRuns(unsummarized=2)).skipped}
    assert "2 sessions without a summary" in reasons["new_fingerprint"]


def test_job_that_took_longer_than_usual_is_a_finding_and_no_verdict() -> None:
    before = diagnose(FACTS)
    found = compared(EarlierRuns(runs=5, slower=(SLOWER,)))
    assert found.verdict == before.verdict
    assert found.verdict is not None
    assert found.findings[found.verdict.finding].code == before.findings[0].code
    (slower,) = [each for each in found.findings if each.code == "regression"]
    assert slower.headline == "nightly took 15 min 0 s, 1.5 times as long as usual"
    assert not slower.root
    assert not {"new_fingerprint", "regression"} & {each.code for each in found.skipped}
