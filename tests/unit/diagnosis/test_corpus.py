"""Every code of the diagnosis has a planted case, or a reason why it has none."""

from failures.cases import CASES, NOT_PLANTED
from rayhistory.diagnosis.rules.registry import FAILURE_RULES, SESSION_RULES


def test_every_failure_is_planted_or_says_why_not() -> None:
    planted = {case.verdict for case in CASES.values() if case.verdict}
    codes = {rule.code for rule in FAILURE_RULES}
    assert codes == planted | NOT_PLANTED.keys()
    assert not planted & NOT_PLANTED.keys()


def test_all_slowness_and_missing_data_is_planted() -> None:
    assert {rule.code for rule in SESSION_RULES} <= {code for case in CASES.values() for code in case.findings}


def test_cases_have_names_of_their_own_and_known_codes() -> None:
    codes = {rule.code for rule in FAILURE_RULES} | {rule.code for rule in SESSION_RULES}
    for case in CASES.values():
        named = {*case.findings, *case.absent, *case.allowed, *([case.verdict] if case.verdict else [])}
        assert named <= codes, case
