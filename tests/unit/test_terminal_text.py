"""Terminal sequences are removed whole."""

import pytest

from rayhistory.terminal_text import strip_ansi


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain [31m text", "plain [31m text"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[1;38;5;208mbold\x1b[39m", "bold"),
        ("\x9b31mred", "red"),
        ("\x1b[2K\x1b[1Gline", "line"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0\x1b\\after", "after"),
        ("\x1b(Bascii", "ascii"),
        ("cut \x1b[31", "cut "),
        ("cut \x1b", "cut "),
    ],
)
def test_sequences_are_removed_whole(text: str, expected: str) -> None:
    assert strip_ansi(text) == expected
