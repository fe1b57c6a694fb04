"""Text output of `rayhistory gaps`."""

from rayhistory.cli.inspect.gaps import _describe
from rayhistory.server.history_api.api_types import SessionGap


def gap(**fields: object) -> SessionGap:
    defaults = {
        "code": "line_unreadable", "count": 2, "place": "a/b.jsonl", "detail": "",
        "summary": "2 lines could not be parsed",
        "meaning": "The lines are not valid JSON.", "remedy": "Copy the object again.", "loss": True,
    }  # fmt: skip
    return SessionGap(**defaults | fields)  # type: ignore[arg-type]


def test_loss_has_a_place_a_meaning_and_a_remedy() -> None:
    assert _describe(gap()).splitlines() == [
        "2 lines could not be parsed (line_unreadable)",
        "    a/b.jsonl",
        "    The lines are not valid JSON.",
        "    How to avoid it: Copy the object again.",
    ]


def test_informational_gap_has_no_remedy() -> None:
    assert "How to avoid it" not in _describe(gap(loss=False))


def test_control_characters_are_not_printed() -> None:
    assert "\x1b" not in _describe(gap(place="\x1b[31m", code="\x1b[31m", detail="\x1b[31m"))
