"""Drivers that exported no events."""

from rayhistory.diagnosis.findings import Finding
from rayhistory.diagnosis.headlines import plural
from rayhistory.diagnosis.rules.rule import Example, SessionRule
from rayhistory.diagnosis.rules.slowness.costs import slow
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.gaps import GapCode


def _find(facts: SessionFacts) -> list[Finding]:
    count = facts.gaps.get(GapCode.TASK_WITHOUT_DEFINITION, 0)
    if not count:
        return []
    return [
        slow(
            RULE.code,
            f"{plural(count, 'task')} {'has' if count == 1 else 'have'} no definition: their driver did not export "
            f"events",
            detail="Their errors and their ends are known only as far as their workers reported them.",
            suggestion="Start Ray with --system-config from `rayhistory env`, so that every driver exports.",
            tasks=count, severity="info",
        )
    ]  # fmt: skip


RULE = SessionRule(
    code="driver_not_exporting",
    severity="info",
    meaning="A driver exported no events, so that its tasks have no names and errors may be missing.",
    find=_find,
    example=Example(
        facts=SessionFacts(gaps={GapCode.TASK_WITHOUT_DEFINITION: 39}),
        headline="39 tasks have no definition: their driver did not export events",
    ),
)
