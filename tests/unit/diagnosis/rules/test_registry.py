"""Every rule explains its worked example, with its code and its headline."""

import pytest

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.rules.registry import FAILURE_RULES, SESSION_RULES
from rayhistory.diagnosis.rules.rule import FailureRule, SessionRule


@pytest.mark.parametrize("rule", FAILURE_RULES, ids=lambda rule: rule.code)
def test_failure_rule_explains_its_example(rule: FailureRule) -> None:
    found = diagnose(rule.example.facts)
    assert (found.findings[0].code, found.findings[0].headline) == (rule.code, rule.example.headline)


@pytest.mark.parametrize("rule", SESSION_RULES, ids=lambda rule: rule.code)
def test_session_rule_finds_its_example(rule: SessionRule) -> None:
    found = [finding for finding in diagnose(rule.example.facts).findings if finding.code == rule.code]
    assert [finding.headline for finding in found] == [rule.example.headline]


def test_codes_are_unique() -> None:
    codes = [rule.code for rule in FAILURE_RULES] + [rule.code for rule in SESSION_RULES]
    assert len(codes) == len(set(codes))
