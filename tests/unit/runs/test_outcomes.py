"""A finished run is worth telling if it failed, got slower, works again, or was lost."""

import msgspec

from rayhistory.diagnosis.earlier_runs import JobHistory
from rayhistory.runs.outcomes import earlier_runs, outcomes_of
from rayhistory.runs.run_groups import Run, group_runs, runs_of
from support.generated_runs import DAY_MS, FIRST_MS, generated


def run(number: int = 0, **values: object) -> Run:
    (found,) = runs_of(generated(number, **values).summary)  # type: ignore[arg-type]
    return found


def kinds(finished: Run, *earlier: Run) -> list[str]:
    return [outcome.kind for outcome in outcomes_of(finished, list(earlier))]


GOOD = [run(number) for number in range(6)]


def test_good_run_after_good_runs_tells_nothing() -> None:
    assert kinds(run(), *GOOD) == []
    assert kinds(run()) == []


def test_failed_run_says_whether_its_fingerprint_is_new() -> None:
    (first,) = outcomes_of(run(status="FAILED", fingerprint="aa"), GOOD)
    assert (first.kind, first.new_fingerprint, first.headline) == ("failed", True, "ValueError in load (train.py:12)")
    (again,) = outcomes_of(run(status="FAILED", fingerprint="aa"), [*GOOD, run(status="FAILED", fingerprint="aa")])
    assert not again.new_fingerprint


def test_slower_run_regresses() -> None:
    (outcome,) = outcomes_of(run(duration_ms=900_000), GOOD)
    assert outcome.kind == "regressed"
    assert outcome.regression
    assert outcome.regression.ratio == 1.5


def test_good_run_after_a_failed_one_recovers() -> None:
    failed, stopped = run(status="FAILED", fingerprint="aa"), run(status="STOPPED")
    assert kinds(run(), *GOOD, failed) == ["recovered"]
    assert kinds(run(), *GOOD, failed, stopped) == ["recovered"]
    assert kinds(run(duration_ms=900_000), *GOOD, failed) == ["recovered", "regressed"]


def test_lost_session_has_vanished() -> None:
    lost = run(status="FAILED", state="vanished")
    inferred = msgspec.structs.replace(lost, job=msgspec.structs.replace(lost.job, inferred=True))
    assert kinds(inferred, *GOOD) == ["vanished"]
    assert kinds(run(status="SUCCEEDED", state="vanished"), *GOOD) == []


def test_stopped_and_running_runs_tell_nothing() -> None:
    assert kinds(run(status="STOPPED"), *GOOD) == []
    assert kinds(run(state="running"), *GOOD) == []


NIGHTS = [
    generated(night, started_ms=FIRST_MS + night * DAY_MS, duration_ms=600_000 + night, fingerprint=f"f{night}")
    for night in range(15)
]
OTHER = generated(50, name="other", started_ms=FIRST_MS, fingerprint="other")


def test_last_ten_runs_before_the_session_are_compared() -> None:
    groups = group_runs(each.summary for each in (*NIGHTS, OTHER))
    found = earlier_runs(groups, NIGHTS[12].summary.identity)
    assert found.runs == 10
    assert found.fingerprints == {f"f{night}" for night in range(2, 12)}
    assert found.slower == ()


def test_earlier_runs_are_those_of_each_job() -> None:
    """A session with a job that ran every night, and a job that had never run."""
    nights = [msgspec.structs.replace(each.summary, owner_kind=None, owner_name=None) for each in NIGHTS[:13]]
    night = nights.pop()
    (known,) = night.jobs
    new = msgspec.structs.replace(known, id="new", job_id="02000000", name="new", entrypoint="")
    both = msgspec.structs.replace(night, jobs=[known, new])
    found = earlier_runs(group_runs([*nights, both]), night.identity)
    assert found.runs == 10
    assert found.of_jobs([known.id]) == JobHistory(10, found.fingerprints)
    assert found.of_jobs(["unknown task", "new"]) == JobHistory(0, frozenset())
    assert found.of_jobs([known.id, "new"]) == JobHistory(10, found.fingerprints)
    assert found.of_jobs(["unknown task"]) is None


def test_first_run_has_none_before() -> None:
    assert earlier_runs(group_runs([NIGHTS[0].summary]), NIGHTS[0].summary.identity).runs == 0


def test_session_without_a_summary_has_none_before() -> None:
    assert earlier_runs(group_runs([NIGHTS[0].summary]), ("default", "unknown", "session")).runs == 0


def test_slower_run_has_the_usual_duration_beside_it() -> None:
    slow = generated(20, started_ms=FIRST_MS + 20 * DAY_MS, duration_ms=1_200_000)
    groups = group_runs(each.summary for each in (*NIGHTS, slow))
    (found,) = earlier_runs(groups, slow.summary.identity).slower
    assert (found.name, found.duration_ms, found.runs) == ("nightly", 1_200_000, 15)
    assert 600_000 < found.baseline_ms < 600_020
