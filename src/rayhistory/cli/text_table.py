"""Tables as aligned text, cut to the width of a terminal. Other output is not cut."""

import math
import os
import sys
from collections.abc import Sequence

_SEPARATOR = "  "
_MIN_TEXT_WIDTH = 24
"""Minimum width of a text that is cut. Times are shorter, so they are never cut."""
_CUT = "…"


def align(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows as text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (_SEPARATOR.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def terminal_width() -> int | None:
    """Return the width of the terminal on standard output; None if there is none."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except OSError:
        return None


def cut_to_width(names: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """Shorten the longest texts of a table until its rows fit the lines of the terminal.

    Ids are not cut, because users copy them. If a table does not fit into one line, its rows wrap.
    """
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    texts = [number for number, name in enumerate(names) if not _is_id(name) and widths[number] > _MIN_TEXT_WIDTH]
    separators = len(_SEPARATOR) * (len(names) - 1)
    least = sum(_MIN_TEXT_WIDTH if number in texts else each for number, each in enumerate(widths)) + separators
    room = width * math.ceil(least / width) - separators
    while texts and sum(widths) > room:
        widths[max(texts, key=lambda number: widths[number])] -= 1
    return [[_cut(cell, each) for cell, each in zip(row, widths, strict=True)] for row in rows]


def _is_id(name: str) -> bool:
    return name.lower() == "id" or name.lower().endswith("_id")


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else cell[: width - 1] + _CUT
