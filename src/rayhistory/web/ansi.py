"""Convert ANSI colours in log lines to styled text, or remove them. Other control codes are always removed."""

import re
from typing import NamedTuple

_CODE = re.compile(r"\x1b\[([\d;]{0,64})([A-Za-z])|\x1b.?|[\x00-\x08\x0b-\x1f\x7f]")
_COLORS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


class StyledText(NamedTuple):
    text: str
    style: str
    """CSS class names, separated by spaces."""


def styled_texts(line: str) -> list[StyledText]:
    """Split a line where its style changes."""
    pieces: list[StyledText] = []
    style: dict[str, str] = {}
    position = 0
    for match in _CODE.finditer(line):
        if match.start() > position:
            pieces.append(StyledText(line[position : match.start()], " ".join(style.values())))
        if match[2] == "m":
            _apply(style, match[1])
        position = match.end()
    if position < len(line):
        pieces.append(StyledText(line[position:], " ".join(style.values())))
    return pieces


def remove_codes(text: str) -> str:
    return _CODE.sub("", text)


def blank_codes(text: str) -> str:
    """Replace each character of a control code by NUL, so that the offsets of the other characters stay the same."""
    return _CODE.sub(lambda match: "\0" * len(match[0]), text)


def _apply(style: dict[str, str], codes: str) -> None:
    for text in codes.split(";"):
        code = int(text or "0") if len(text) < 4 else -1
        if code == 0:
            style.clear()
        elif code == 1:
            style["weight"] = "ansi-bold"
        elif code == 22:
            style.pop("weight", None)
        elif code == 39:
            style.pop("color", None)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            style["color"] = f"ansi-{_COLORS[code % 10]}"
        elif code == 38:
            return  # 256 colours and more are shown without
