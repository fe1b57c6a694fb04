"""The marker lines that Ray's workers write into their output, and the ranges of tasks inferred from them.

Before each task a worker writes `:task_name:<name>` into both of its files, and `:actor_name:<class>` when it becomes
an actor. The output of a task starts after its marker and ends before the next one. Pure functions, without files.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import msgspec

_MARKER = re.compile(rb":(task|actor)_name:([^\n]{0,1024})\n")
_CRASH = re.compile(
    rb"^(?:\[[\w.]+ : \d+\] RAW: |\*\*\* SIG[A-Z]+ received at time=|Fatal Python error: )", re.MULTILINE
)
"""The beginning of a crash report, which a worker may write after its last task."""
MAX_MARKER_BYTES = 1100


class Marker(msgspec.Struct, frozen=True):
    begin: int
    end: int
    task_name: str | None
    """Name of the task; None for the marker of an actor, and for a crash."""
    at_line_start: bool
    is_crash: bool = False
    """True for the start of a crash report, which is not a marker of Ray."""


class TaskOutput(msgspec.Struct, frozen=True):
    """The known range of one task's output in one file of its worker."""

    marker_name: str | None
    """Name in the task's marker line; None for a task of an actor, which has no marker."""
    start: int | None = None
    end: int | None = None
    has_ended: bool = True
    """True if the task has ended."""
    ended_by_worker: bool = True
    """True if the worker survived the task, and so has recorded the end of its output."""

    @staticmethod
    def marker(task_name: str) -> str:
        """Return a task's name as its worker writes it into the marker line."""
        return task_name.replace("()", "")


Range = tuple[int, int | None]
"""Start and end. Without an end, the output continues to the end of the file."""


def find_markers(chunk: bytes, offset: int) -> list[Marker]:
    """Return the markers and crashes in a chunk that begins at `offset` of its file."""
    crashes = [
        Marker(offset + match.start(), offset + match.end(), None, at_line_start=True, is_crash=True)
        for match in _CRASH.finditer(chunk)
    ]
    return crashes + [
        Marker(
            begin=offset + match.start(),
            end=offset + match.end(),
            task_name=match[2].decode(errors="replace") if match[1] == b"task" else None,
            at_line_start=match.start() == 0 or chunk[match.start() - 1] == ord("\n"),
        )
        for match in _MARKER.finditer(chunk)
    ]


def infer_ranges(outputs: Sequence[TaskOutput], markers: Sequence[Marker], size: int) -> list[Range | None]:
    """Return the range of each task; None if the markers do not determine it.

    `outputs` are all known tasks of one worker, in the order in which they ran. Markers are in the same order, but some
    tasks may be unknown. So the first and the last possible marker of each task are computed. If both are the same, it
    is the task's marker. The report of a crash behind the last marker is not output of a task that ended before.
    """
    crashes, markers = [each.begin for each in markers if each.is_crash], [m for m in markers if not m.is_crash]
    last_marker = markers[-1].end if markers else 0
    size = min((begin for begin in crashes if begin >= last_marker), default=size)
    names = {output.marker_name for output in outputs}
    # Output without a newline at its end precedes a marker on its line; other text that looks like one is output.
    markers = [marker for marker in markers if marker.at_line_start or marker.task_name in names]
    matcher = _Matcher(markers)
    ranges: list[Range | None] = []
    last_end = 0
    for output, first, last in zip(outputs, matcher.first(outputs), matcher.last(outputs), strict=True):
        found: Range | None = None
        if output.marker_name is None:
            found = matcher.actor_task_range(output, last_end)
        elif first is not None and first == last:
            found = markers[first].end, _end(output, markers[first + 1 : first + 2], size)
        ranges.append(found)
        last_end = max(last_end, (found and found[1]) or output.end or 0)
    return ranges


class _Matcher:
    def __init__(self, markers: Sequence[Marker]) -> None:
        self._markers = markers
        self._ends = [marker.end for marker in markers]
        self._by_name: dict[str | None, list[int]] = {}
        for number, marker in enumerate(markers):
            self._by_name.setdefault(marker.task_name, []).append(number)

    def first(self, outputs: Sequence[TaskOutput]) -> list[int | None]:
        """Return the earliest possible marker of each task, after the markers of all tasks that ran before it.

        A task without such a marker gets None.
        """
        chosen: list[int | None] = []
        low = 0
        for output in outputs:
            numbers = self._candidates(output)
            position = bisect_left(numbers, low)
            chosen.append(numbers[position] if position < len(numbers) else None)
            low = low if chosen[-1] is None else chosen[-1] + 1
        return chosen

    def last(self, outputs: Sequence[TaskOutput]) -> list[int | None]:
        """Return the latest possible marker of each task, before the markers of all tasks that ran after it.

        A task without such a marker gets None.
        """
        chosen: list[int | None] = []
        high = len(self._markers)
        for output in reversed(outputs):
            numbers = self._candidates(output)
            position = bisect_left(numbers, high) - 1
            chosen.append(numbers[position] if position >= 0 else None)
            high = high if chosen[-1] is None else chosen[-1]
        return chosen[::-1]

    def _candidates(self, output: TaskOutput) -> Sequence[int]:
        """Return the numbers of the task's possible markers. A known start or end leaves at most one."""
        if output.marker_name is None:
            return ()
        known = output.start if output.start is not None else output.end
        if known is None:
            return self._by_name.get(output.marker_name, ())
        number = bisect_right(self._ends, known) - 1
        is_its_own = number >= 0 and self._markers[number].task_name == output.marker_name
        return (number,) if is_its_own and output.start in (None, self._ends[number]) else ()

    def actor_task_range(self, output: TaskOutput, last_end: int) -> Range | None:
        """Return the range of a task of an actor, if its end is known. It starts where the previous task ended."""
        if output.end is None or last_end > output.end:
            return None
        number = bisect_right(self._ends, output.end) - 1
        return (max(last_end, self._ends[number]), output.end) if number >= 0 else None


def _end(output: TaskOutput, following: Sequence[Marker], size: int) -> int | None:
    if output.end is not None or not output.has_ended:
        return output.end
    if following:
        return following[0].begin
    return size if output.ended_by_worker else None
