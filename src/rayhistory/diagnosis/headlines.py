"""Text helpers for headlines: counts, sizes, durations and stack frames, in one line of limited length."""

from datetime import UTC, datetime
from pathlib import PurePosixPath

from rayhistory.diagnosis.findings import Counts
from rayhistory.diagnosis.tracebacks import StackFrame

MAX_HEADLINE = 240
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def one_line(text: str, limit: int = MAX_HEADLINE) -> str:
    """Return the text in one line, without control characters, cut to `limit`."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: limit * 8]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def things(counts: Counts) -> str:
    """Return counts as text: `3 tasks, 1 actor`."""
    found = [
        f"{count:,} {name if count != 1 else name.removesuffix('s')}"
        for name in Counts.__struct_fields__
        if (count := getattr(counts, name))
    ]
    return ", ".join(found)


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def size(value: float) -> str:
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return ""


def duration(ms: float) -> str:
    """Return a duration with one unit or two: `350 ms`, `4.2 s`, `3 min 5 s`."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def frame_place(frame: StackFrame | None) -> str:
    """Return the file, line and function of a stack frame: `train.py:13 in parse`."""
    return f"{PurePosixPath(frame.file).name}:{frame.line} in {frame.function}" if frame else ""


def utc(ms: int | None) -> str:
    """Return a date and time in UTC."""
    if ms is None or not 0 <= ms < 253_402_300_800_000:
        return "an unknown time"
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
