"""Tables as aligned text: cut to the width of a terminal, whole elsewhere."""

import fcntl
import os
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rayhistory.cli.text_table import align, cut_to_width, terminal_width

NAMES = ("task_id", "state", "error_message")
ID = "c2668a65bda616c1ffffffffffffffffffffffff01000000"
ERROR = "ValueError: " + " ".join(f"column {number} has no label" for number in range(10))
ROWS = [[ID, "FAILED", ERROR], [ID, "FINISHED", "-"]]


@contextmanager
def terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make standard output a terminal of this width."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(ours), os.fdopen(theirs, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        yield
        monkeypatch.undo()


@pytest.mark.parametrize(("columns", "lines"), [(160, 1), (120, 1), (80, 2), (50, 2)])
def test_long_texts_fill_the_last_line_of_the_terminal(columns: int, lines: int) -> None:
    first, second = align(cut_to_width(NAMES, ROWS, columns)).split("\n")
    assert len(first) == lines * columns
    assert first.endswith("…")
    assert first.startswith(f"{ID}  FAILED    ValueError: column 0")
    assert second == f"{ID}  FINISHED  -"


def test_table_that_fits_is_not_cut() -> None:
    assert cut_to_width(NAMES, ROWS, 400) == ROWS


def test_longest_texts_are_cut_first_and_times_never() -> None:
    names, time = ("name", "start_time_ms", "error_message"), "2026-11-15 19:19:20.123"
    ((name, start, error),) = cut_to_width(names, [["train" * 8, time, ERROR]], 100)
    assert (name, start) == ("train" * 7 + "…", time)
    assert (len(error), error[:20]) == (len(name) + 1, ERROR[:20])


def test_table_without_rows_has_its_names() -> None:
    assert cut_to_width(NAMES, [], 10) == []


def test_width_is_that_of_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    assert terminal_width() is None
    with terminal(132, monkeypatch):
        assert terminal_width() == 132
    with terminal(0, monkeypatch):
        assert terminal_width() is None  # some terminals do not know
