"""Single tasks that took much longer than other tasks of their function."""

from rayhistory.diagnosis.findings import Evidence, Finding
from rayhistory.diagnosis.headlines import duration
from rayhistory.diagnosis.rules.rule import Example, SessionRule
from rayhistory.diagnosis.rules.slowness.costs import example_function, slow
from rayhistory.diagnosis.rules.slowness.training import slow_ranks
from rayhistory.diagnosis.session_facts import SessionFacts

_MIN_TASKS = 10
_MIN_MAX_MS = 10_000
_FACTOR = 3.16


def _find(facts: SessionFacts) -> list[Finding]:
    return [*_slow_tasks(facts), *slow_ranks(facts)]


def _slow_tasks(facts: SessionFacts) -> list[Finding]:
    return [
        slow(
            RULE.code,
            f"One {each.function} task took {duration(each.max_ms)}, {each.max_ms / max(each.median_ms, 1):.0f} times "
            f"the median of {duration(each.median_ms)}",
            suggestion="Split the input evenly among tasks, or find out how the data or the node of this task differs.",
            tasks=1,
            evidence=[Evidence(kind="task", id=each.slowest_task_id, text=f"ran for {duration(each.max_ms)}")],
        )
        for each in facts.functions
        if each.type != "ACTOR_CREATION_TASK"
        and each.count >= _MIN_TASKS
        and each.max_ms >= _MIN_MAX_MS
        and each.max_ms >= _FACTOR * max(each.median_ms, 1)
    ]


RULE = SessionRule(
    code="stragglers",
    meaning="Among at least ten tasks of a function, one took more than 10 s and more than 3.16 times the median; or "
    "a rank of Ray Train needed 1.5 times the median, and the others waited for it.",
    find=_find,
    example=Example(
        facts=SessionFacts(functions=[example_function(max_ms=14_000)]),
        headline="One train task took 14.0 s, 14 times the median of 1.0 s",
    ),
)
