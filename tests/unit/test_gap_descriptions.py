"""Every code of a gap is described, and the descriptions read well."""

import re

import pytest

from rayhistory.gap_descriptions import INFORMATIONAL_CODES, describe, is_complete
from rayhistory.gaps import GapCode


@pytest.mark.parametrize("code", GapCode)
def test_every_code_is_registered_and_described(code: GapCode) -> None:
    kind = describe(code)
    assert kind.code == code
    assert re.fullmatch(r"[a-z]+(_[a-z]+)+", code)
    assert code.value == code.name.lower()
    for text in (kind.meaning, kind.remedy):
        assert text[0].isupper()
        assert text.endswith(".")
    assert len(kind.meaning) > 20


@pytest.mark.parametrize("code", GapCode)
def test_summaries_read_well_for_one_and_for_several(code: GapCode) -> None:
    kind = describe(code)
    one, two = kind.summary(1), kind.summary(2)
    assert one.startswith("1 ")
    assert two.startswith("2 ")
    assert one[2:] != two[2:], "the plural differs"
    assert kind.summary(1_000).startswith("1,000 ")
    for summary in (one, two):
        assert not summary.endswith(".")
        assert "{" not in summary
        assert len(summary) < 100
    assert not {"are", "have", "were", "their"} & set(one.split())
    assert not {"is", "has", "its"} & set(two.split())


def test_well_known_summaries() -> None:
    assert describe("task_open_at_session_end").summary(1) == "1 task was still running when the cluster ended"
    assert describe("task_without_definition").summary(39) == (
        "39 tasks have no name or error: their driver did not export events"
    )


@pytest.mark.parametrize("code", ["code_of_a_later_release", "", "{count}", "{"])
def test_unknown_code_has_a_description(code: str) -> None:
    kind = describe(code)
    assert kind.code == code
    assert kind.is_loss
    assert code in kind.summary(1)
    assert kind.summary(2).startswith("2 gaps of the unknown kind")


def test_only_informational_codes_are_no_loss() -> None:
    assert set(INFORMATIONAL_CODES) == {
        GapCode.EVENTS_LATE,
        GapCode.EVENTS_REPEATED,
        GapCode.TASK_EXECUTION_UNREPORTED,
        GapCode.TASK_OPEN_AT_SESSION_END,
        GapCode.ACTOR_OPEN_AT_SESSION_END,
        GapCode.JOB_OPEN_AT_SESSION_END,
        GapCode.WORKER_OPEN_AT_SESSION_END,
        GapCode.NODE_OPEN_AT_SESSION_END,
    }
    assert is_complete([])
    assert is_complete(INFORMATIONAL_CODES)
    assert not is_complete([*INFORMATIONAL_CODES, "line_unreadable"])
    assert not is_complete(["code_of_a_later_release"])
