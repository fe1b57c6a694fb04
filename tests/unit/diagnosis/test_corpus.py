"""Every code of the diagnosis has a planted case, or a reason why it has none."""

import os
from pathlib import Path

import pytest

from failures.cases import CASES, NOT_EXPECTED, NOT_PLANTED
from failures.recording import record_case
from failures.score import Outcome, document
from rayhistory.diagnosis.rules.registry import FAILURE_RULES, SESSION_RULES


def test_every_failure_is_planted_or_says_why_not() -> None:
    planted = {case.verdict for case in CASES.values() if case.verdict}
    codes = {rule.code for rule in FAILURE_RULES}
    assert codes == planted | NOT_PLANTED.keys()
    assert not planted & NOT_PLANTED.keys()


def test_all_slowness_and_missing_data_is_planted() -> None:
    planted = {code for case in CASES.values() for code in case.findings}
    assert {rule.code for rule in SESSION_RULES} <= planted | NOT_EXPECTED.keys()
    assert not planted & NOT_EXPECTED.keys()


def test_cases_have_names_of_their_own_and_known_codes() -> None:
    codes = {rule.code for rule in FAILURE_RULES} | {rule.code for rule in SESSION_RULES}
    for case in CASES.values():
        named = {*case.findings, *case.absent, *case.allowed, *([case.verdict] if case.verdict else [])}
        assert named <= codes, case


def test_case_that_needs_privileges_is_skipped_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PermissionError, match="needs root"):
        record_case("slow-slow_node", tmp_path / "slow-slow_node")


def test_page_lists_skipped_cases_and_counts_the_others() -> None:
    name = "exceptions-task_raises"
    right = Outcome(name, "complete", "user_exception", "user_exception", ["user_exception"], is_right=True, missing=[])
    page = document([right], {"processes-leaks_in_container": "needs root"})
    assert f"1 of {len(CASES)} cases were recorded for this page" in page
    assert "(precision): 1/1" in page
    assert "- `processes-leaks_in_container`: needs root" in page
