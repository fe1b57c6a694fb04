"""What a verdict explains, and what has none."""

import msgspec
import pytest

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.rules.exceptions.raised import failed_job, failed_task, session_with_task
from rayhistory.diagnosis.session_facts import RUNNING, VANISHED, JobFacts, NodeFacts, SessionFacts
from rayhistory.index.query.failure_groups import FailureGroups

TRACEBACK = 'User exception:\n  File "/app/train.py", line 3, in train\n    fail()\nValueError: no data'
SUCCEEDED = JobFacts(job_id="01000000", status="SUCCEEDED", start_ms=1, end_ms=2)


def test_session_without_failures_has_no_verdict() -> None:
    assert diagnose(SessionFacts(jobs=[SUCCEEDED])).verdict is None


def test_failures_that_the_program_handled_are_findings_and_no_verdict() -> None:
    facts = SessionFacts(jobs=[SUCCEEDED], failures=FailureGroups([failed_task(TRACEBACK)], 1, 1))
    found = diagnose(facts)
    assert found.verdict is None
    assert [(each.code, each.severity, each.root) for each in found.findings] == [("user_exception", "info", False)]


def test_driver_that_reraises_an_error_is_a_consequence() -> None:
    found = diagnose(session_with_task(TRACEBACK))
    assert found.verdict and found.verdict.code == "user_exception"
    assert [(each.counts.tasks, each.counts.jobs, each.consequences) for each in found.findings] == [(1, 1, 1)]


def test_every_failure_belongs_to_exactly_one_finding() -> None:
    groups = [failed_task(TRACEBACK, count=40), failed_task(TRACEBACK.replace("train.py", "load.py"), count=2),
              failed_task("?", error_type="SOMETHING_NEW", count=3)]  # fmt: skip
    found = diagnose(SessionFacts(jobs=[failed_job(TRACEBACK)], failures=FailureGroups(groups, 45, 3)))
    assert sum(each.counts.tasks for each in found.findings) == 45
    assert sum(each.counts.jobs for each in found.findings) == 1


def test_specific_code_wins_over_the_exception_of_a_driver() -> None:
    frame = '  File "/app/main.py", line 1, in <module>'
    output = f"Traceback (most recent call last):\n{frame}\n    import x\nModuleNotFoundError: No module named 'x'\n"
    found = diagnose(SessionFacts(jobs=[failed_job(output)]))
    assert found.verdict and found.verdict.code == "module_not_found"


def test_head_that_vanished_after_all_jobs_had_succeeded_is_no_verdict() -> None:
    found = diagnose(SessionFacts(state=VANISHED, jobs=[SUCCEEDED], ended_ms=3))
    assert found.verdict is None
    assert [each.code for each in found.findings] == ["head_lost"]


def test_head_that_vanished_with_a_running_job_is_the_verdict() -> None:
    running = msgspec.structs.replace(SUCCEEDED, status="FAILED", inferred=True)
    found = diagnose(SessionFacts(state=VANISHED, jobs=[running], ended_ms=3))
    assert found.verdict and found.verdict.code == "head_lost"


def test_failed_job_of_a_vanished_session_keeps_its_verdict() -> None:
    facts = msgspec.structs.replace(session_with_task(TRACEBACK), state=VANISHED, ended_ms=1_800_000_010_000)
    found = diagnose(facts)
    assert found.verdict and found.verdict.code == "user_exception"


def test_running_session_is_provisional() -> None:
    running = msgspec.structs.replace(SUCCEEDED, status="RUNNING", end_ms=None)
    found = diagnose(SessionFacts(state=RUNNING, jobs=[running]))
    assert found.provisional
    assert found.verdict is None


def test_what_ended_with_its_job_is_no_failure() -> None:
    group = failed_task("Job finishes (01) as driver exits.", error_type="WORKER_DIED", at_job_end=True)
    assert not diagnose(SessionFacts(jobs=[SUCCEEDED], failures=FailureGroups([group], 0, 1))).findings


def test_skipped_rules_say_why() -> None:
    found = diagnose(SessionFacts(has_logs=False, has_metrics=False, nodes=[NodeFacts(node_id="ab")]))
    reasons = {skipped.code: skipped.reason for skipped in found.skipped}
    assert reasons["worker_segfault"] == "no log files were recorded"
    assert reasons["container_oom_killed"] == "no metrics were recorded"


def test_more_causes_than_are_listed_are_counted() -> None:
    groups = [failed_task(TRACEBACK.replace("train.py", f"file{number}.py"), task_id=f"{number:048x}")
              for number in range(500)]  # fmt: skip
    found = diagnose(SessionFacts(jobs=[SUCCEEDED], failures=FailureGroups(groups, 500, 500)))
    assert len(found.findings) == 101
    assert sum(each.counts.tasks for each in found.findings) == 500


@pytest.mark.parametrize(
    ("output", "confidence"), [(None, "likely"), ("ray.exceptions.RayTaskError(ValueError): ", "certain")]
)
def test_verdict_by_time_alone_is_not_certain(output: str | None, confidence: str) -> None:
    """Without the driver's output, the task that failed last is only likely to be the reason."""
    raised = 'ray::train()\n  File "/app/train.py", line 3, in train\nValueError: no data'
    task = failed_task(f"User exception:\n{raised}", last_ms=1_800_000_000_500)
    job = failed_job("", message="exited with code 1", exit_code=1, end_ms=1_800_000_001_000)
    if output:
        job = msgspec.structs.replace(job, output=f"Traceback (most recent call last):\n{output}{raised}")
    found = diagnose(SessionFacts(jobs=[job], failures=FailureGroups([task], 1, 1)))
    assert found.verdict
    assert (found.verdict.code, found.verdict.confidence) == ("user_exception", confidence)
    assert found.findings[0].confidence == "certain"


def test_exceptions_of_two_files_of_one_name_are_two_findings() -> None:
    tasks = [failed_task(TRACEBACK.replace("/app", f"/app/{folder}"), function=folder) for folder in ("one", "two")]
    found = diagnose(
        SessionFacts(jobs=[failed_job("exited with code 1")], failures=FailureGroups(tasks, 2, 2))
    ).findings
    assert sum(finding.code == "user_exception" for finding in found) == 2


def test_driver_with_the_exception_of_a_task_that_was_not_recorded() -> None:
    """An imported session may have no tasks."""
    raised = 'ray::train() (pid=7, ip=10.0.0.7)\n  File "/app/train.py", line 3, in train\nValueError: no data'
    output = f"Traceback (most recent call last):\nray.exceptions.RayTaskError(ValueError): {raised}"
    (finding,) = diagnose(SessionFacts(jobs=[failed_job(output)])).findings
    assert finding.code == "driver_exception"
    assert finding.detail == "A task or actor raised the exception first, but its failure was not recorded."
