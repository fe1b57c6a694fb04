"""Events that were lost."""

from rayhistory.diagnosis.findings import Evidence, Finding
from rayhistory.diagnosis.rules.rule import Example, SessionRule
from rayhistory.diagnosis.rules.slowness.costs import slow
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.gap_descriptions import describe
from rayhistory.gaps import GapCode

_OWN_RULE = (GapCode.TASK_WITHOUT_DEFINITION,)


def _find(facts: SessionFacts) -> list[Finding]:
    losses = [code for code in facts.gaps if code not in _OWN_RULE and describe(code).is_loss]
    if not losses:
        return []
    texts = [describe(code).summary(facts.gaps[code]) for code in sorted(losses)]
    return [
        slow(
            RULE.code,
            f"The recording is incomplete: {'; '.join(texts[:3])}",
            detail="The diagnosis may miss a cause.",
            suggestion="See the gaps page for how to avoid each gap.",
            severity="info",
            evidence=[Evidence(kind="gaps", text="\n".join(texts), url="gaps")],
        )
    ]


RULE = SessionRule(
    code="events_missing",
    severity="info",
    meaning="Events of the session were lost, so the diagnosis may miss causes.",
    find=_find,
    example=Example(
        facts=SessionFacts(gaps={GapCode.TASK_WITHOUT_EXECUTION: 3}),
        headline="The recording is incomplete: " + describe(GapCode.TASK_WITHOUT_EXECUTION).summary(3),
    ),
)
