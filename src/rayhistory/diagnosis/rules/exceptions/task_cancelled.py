"""Cancelled tasks whose results were read."""

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.headlines import one_line, plural
from rayhistory.diagnosis.rules.exceptions.raised import failed_job, failed_task, raised_in, traceback_of
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.index.query.failure_groups import FailureGroups


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    raised = raised_in(failure)
    by_exception = raised is not None and raised.short_type == "TaskCancelledError"
    if failure.error_type != "TASK_CANCELLED" and not by_exception:
        return None
    return Match(group=f"{failure.job_id} {failure.function}", evidence=(traceback_of(failure),))


def _describe(group: Group, facts: SessionFacts) -> Words:
    count = sum(root.count for root in group.roots if root.kind == "tasks")
    noun = f"{group.first.function} task".lstrip()
    who = f"{plural(count, noun)} {'was' if count == 1 else 'were'} cancelled" if count else \
        "The driver waited for a task that was cancelled"  # fmt: skip
    return Words(
        headline=one_line(f"{who} by ray.cancel()"),
        suggestion=(
            "Catch ray.exceptions.TaskCancelledError where the program reads results of tasks that it may cancel."
        ),
    )


RULE = FailureRule(
    code="task_cancelled",
    meaning="A task was cancelled with ray.cancel(), and its result was read.",
    match=_match,
    describe=_describe,
    example=Example(
        facts=SessionFacts(
            jobs=[failed_job("ray.exceptions.TaskCancelledError: Task was cancelled")],
            failures=FailureGroups([failed_task("Task was cancelled", error_type="TASK_CANCELLED")], 1, 1),
        ),
        headline="1 train task was cancelled by ray.cancel()",
    ),
)
