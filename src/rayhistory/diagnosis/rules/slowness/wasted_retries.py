"""Run time of attempts that failed and were retried."""

from rayhistory.diagnosis.findings import Finding
from rayhistory.diagnosis.headlines import duration
from rayhistory.diagnosis.rules.rule import Example, SessionRule
from rayhistory.diagnosis.rules.slowness.costs import slow
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.index.query.task_times import TimeTotals

_MIN_SHARE, _WARNING_SHARE = 0.1, 0.3
_MIN_MS = 5_000


def _find(facts: SessionFacts) -> list[Finding]:
    times = facts.times
    if times.failed_ms < _MIN_MS or times.failed_ms < _MIN_SHARE * times.running_ms:
        return []
    share = times.failed_ms / max(times.running_ms, 1)
    attempts = sum(group.count for group in facts.failures.groups if group.retried)
    functions = sorted({group.function for group in facts.failures.groups if group.retried})[:3]
    names = f" of {', '.join(functions)}" if functions else ""
    return [
        slow(
            RULE.code,
            f"{duration(times.failed_ms)} of run time ({share:.0%}) was spent on attempts{names} that failed and were "
            "retried",
            suggestion="Fix the cause of the failures, or write checkpoints, so that a retry does not start from the "
                       "beginning.",
            tasks=attempts, severity="warning" if share >= _WARNING_SHARE else "info",
        )
    ]  # fmt: skip


RULE = SessionRule(
    code="wasted_retries",
    meaning="At least a tenth of the run time was spent on attempts that failed and were retried.",
    find=_find,
    example=Example(
        facts=SessionFacts(times=TimeTotals(tasks=20, running_ms=100_000, failed_ms=40_000)),
        headline="40.0 s of run time (40%) was spent on attempts that failed and were retried",
    ),
)
