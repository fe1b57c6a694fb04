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
            f"{plural(count, 'task')} {'has' if count == 1 else 'have'} no name or error because "
            f"{'its' if count == 1 else 'their'} driver did not export events",
            detail="Their errors and end times are known only if their workers reported them.",
            suggestion=(
                "Start Ray with the --system-config that `rayhistory env` prints, so that every driver exports "
                "events."
            ),
            tasks=count, severity="info",
        )
    ]  # fmt: skip


RULE = SessionRule(
    code="driver_not_exporting",
    severity="info",
    meaning="A driver exported no events, so its tasks have no names, and errors may be missing.",
    find=_find,
    example=Example(
        facts=SessionFacts(gaps={GapCode.TASK_WITHOUT_DEFINITION: 39}),
        headline="39 tasks have no name or error because their driver did not export events",
    ),
)
