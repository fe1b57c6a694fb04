"""ANSI colours become style classes; nothing else of a control code reaches a page."""

from rayhistory.web.ansi import StyledText, styled_texts


def test_colours_change_the_style_until_they_are_reset() -> None:
    assert styled_texts("a \x1b[1;31mred\x1b[0m b \x1b[92mgreen") == [
        StyledText("a ", ""),
        StyledText("red", "ansi-bold ansi-red"),
        StyledText(" b ", ""),
        StyledText("green", "ansi-green"),
    ]


def test_other_control_codes_are_dropped() -> None:
    assert styled_texts("a\x1b[2Kb\x1b]c\x00\x07d\x1b") == [
        StyledText("a", ""), StyledText("b", ""), StyledText("c", ""), StyledText("d", ""),
    ]  # fmt: skip
    assert "".join(piece.text for piece in styled_texts("\x1b[99999999999999m<b>")) == "<b>"
