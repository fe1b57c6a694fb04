"""Tasks that are shorter than their scheduling overhead."""

from rayhistory.diagnosis.findings import Finding
from rayhistory.diagnosis.headlines import duration
from rayhistory.diagnosis.rules.rule import Example, SessionRule
from rayhistory.diagnosis.rules.slowness.costs import example_function, slow
from rayhistory.diagnosis.session_facts import SessionFacts

_MIN_TASKS = 5_000
_MAX_MEDIAN_MS = 10


def _find(facts: SessionFacts) -> list[Finding]:
    return [
        slow(
            RULE.code,
            f"{each.count:,} {each.function} tasks ran for {duration(each.median_ms)} each, less than the overhead of "
            "a task",
            suggestion="Process a batch of items per task, so that each task runs for a second or more.",
            tasks=each.count, severity="info",
        )
        for each in facts.functions
        if each.count > _MIN_TASKS and each.median_ms < _MAX_MEDIAN_MS
    ]  # fmt: skip


RULE = SessionRule(
    code="tiny_tasks",
    severity="info",
    meaning="More than 5,000 tasks of one function ran for less than 10 ms each.",
    find=_find,
    example=Example(
        facts=SessionFacts(functions=[example_function(count=8_000, median_ms=2.0)]),
        headline="8,000 train tasks ran for 2 ms each, less than the overhead of a task",
    ),
)
