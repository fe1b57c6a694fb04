"""Tasks that took long to start."""

from rayhistory.diagnosis.findings import Finding
from rayhistory.diagnosis.headlines import duration
from rayhistory.diagnosis.rules.rule import Example, SessionRule
from rayhistory.diagnosis.rules.slowness.costs import slow
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.index.query.task_times import TimeTotals

_MIN_PER_TASK_MS = 10_000


def _find(facts: SessionFacts) -> list[Finding]:
    times = facts.times
    if not times.tasks or times.starting_ms / times.tasks < _MIN_PER_TASK_MS:
        return []
    return [
        slow(
            RULE.code,
            f"Tasks took {duration(times.starting_ms / times.tasks)} on average to start on their worker",
            suggestion="Install packages in the image instead of the runtime environment, and import large libraries "
            "once per process.",
            tasks=times.tasks,
        )
    ]


RULE = SessionRule(
    code="slow_startup",
    meaning="Tasks took more than 10 s on average to start on their worker.",
    find=_find,
    example=Example(
        facts=SessionFacts(times=TimeTotals(tasks=10, starting_ms=300_000, running_ms=10_000)),
        headline="Tasks took 30.0 s on average to start on their worker",
    ),
)
