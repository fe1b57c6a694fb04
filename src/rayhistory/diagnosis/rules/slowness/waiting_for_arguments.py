"""Tasks that spent much of their time waiting for the results of other tasks."""

from rayhistory.diagnosis.findings import Finding
from rayhistory.diagnosis.headlines import duration
from rayhistory.diagnosis.rules.rule import Example, SessionRule
from rayhistory.diagnosis.rules.slowness.costs import slow, total_ms
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.index.query.task_times import TimeTotals

_MIN_SHARE = 0.2
_MIN_WAIT_MS = 60_000


def _find(facts: SessionFacts) -> list[Finding]:
    times = facts.times
    waited = times.waiting_args_ms + times.fetching_args_ms
    total = total_ms(times)
    if not total or waited < _MIN_WAIT_MS or waited / total < _MIN_SHARE:
        return []
    return [
        slow(
            RULE.code,
            f"Tasks spent {waited / total:.0%} of their time waiting for their arguments, {duration(waited)} in total",
            suggestion="Shorten the tasks that other tasks depend on, or start them earlier. If arguments are large, "
                       "run tasks on the node that has them.",
            tasks=times.tasks, severity="info",
        )
    ]  # fmt: skip


RULE = SessionRule(
    code="waiting_for_arguments",
    severity="info",
    meaning="Tasks spent more than a fifth of their time waiting for results of other tasks.",
    find=_find,
    example=Example(
        facts=SessionFacts(times=TimeTotals(tasks=20, waiting_args_ms=120_000, running_ms=120_000)),
        headline="Tasks spent 50% of their time waiting for their arguments, 2 min 0 s in total",
    ),
)
