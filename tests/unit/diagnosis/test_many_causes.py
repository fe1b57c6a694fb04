"""As many causes as failures: the largest are listed, and every failure is counted."""

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.explain import MAX_FINDINGS
from rayhistory.diagnosis.rules.exceptions.raised import failed_job, failed_task
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.index.query.failure_groups import MAX_GROUPS, FailureGroups


def message(number: int) -> str:
    return (
        f"User exception:\nTraceback (most recent call last):\n"
        f'  File "/app/stage_{number}.py", line 3, in load\n    raise ValueError(path)\nValueError: bad record'
    )


def test_failures_of_unlisted_causes_are_counted() -> None:
    listed, total = 150, 40_000
    groups = [failed_task(message(number), function=f"stage_{number}") for number in range(listed)]
    failures = FailureGroups(groups, total=total, total_groups=total)
    found = diagnose(SessionFacts(jobs=[failed_job("exited with code 1")], failures=failures)).findings
    assert listed < MAX_GROUPS
    assert len(found) == MAX_FINDINGS + 1
    assert sum(finding.counts.tasks for finding in found) == total
    (rest,) = (finding for finding in found if "not listed" in finding.headline)
    # One of the listed findings is that of the driver.
    assert rest.headline == "39,901 tasks failed from 39,901 other causes that are not listed"
