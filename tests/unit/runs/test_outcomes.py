"""A finished run is worth telling if it failed, got slower, works again, or was lost."""

import msgspec

from rayhistory.runs.outcomes import outcomes_of
from rayhistory.runs.run_groups import Run, runs_of
from support.generated_runs import generated


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
