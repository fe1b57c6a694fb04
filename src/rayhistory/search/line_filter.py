"""Find lines that may match a pattern with Hyperscan, at several times the speed of RE2.

Hyperscan gets an expression over bytes that matches more than the pattern, so the lines that it finds must be checked.
Hyperscan is optional: on platforms without it, and for patterns that it would compile slowly, there is no filter.
"""

from rayhistory.logs.source import Content
from rayhistory.search.byte_pattern import literal_to_byte_regex, to_byte_regex

try:
    import hyperscan
except ImportError:  # no wheel for this platform
    hyperscan = None  # type: ignore[assignment]

_MIN_BYTES_PER_LINE = 2000
"""Minimum number of bytes per candidate line. With more candidates, RE2 alone is faster than the filter."""
_MIN_LINES = 16


class LineFilter:
    """A compiled filter. A Hyperscan database serves one thread at a time, so concurrent threads get several."""

    def __init__(self, expression: bytes) -> None:
        self._expression = expression
        self._databases = [self._compile()]

    def candidate(self, buffer: Content, start: int, end: int) -> int | None:
        """Return a position in the first line of [start, end) that may match; None if there is none."""
        if start == end:
            return start
        try:
            database = self._databases.pop()
        except IndexError:  # other threads use all of them
            database = self._compile()
        found: list[int] = []

        def stop(_id: int, _from: int, to: int, _flags: int, _context: object) -> bool:
            found.append(to)
            return True

        try:
            with memoryview(buffer) as view, view[start:end] as part:
                database.scan(part, match_event_handler=stop)  # type: ignore[type-var]
        except hyperscan.ScanTerminated:
            pass
        finally:
            self._databases.append(database)
        if found:
            return start + found[0]
        # Hyperscan's ^ does not match after a newline at the end, so an empty last line is always a candidate.
        return end if buffer[end - 1] == ord("\n") else None

    def is_useful(self, lines: int, size: int) -> bool:
        """Return False if too many of the lines in `size` bytes were candidates."""
        return lines < _MIN_LINES or size > lines * _MIN_BYTES_PER_LINE

    def _compile(self) -> "hyperscan.Database":
        database = hyperscan.Database()
        flags = hyperscan.HS_FLAG_MULTILINE | hyperscan.HS_FLAG_ALLOWEMPTY
        database.compile(expressions=[self._expression], ids=[0], elements=1, flags=[flags])
        return database


def make_filter(text: str, *, regex: bool, case: bool) -> LineFilter | None:
    """Return a filter for a valid pattern; None without Hyperscan, or if the pattern cannot be translated."""
    if hyperscan is None:
        return None
    expression = to_byte_regex(text, case=case) if regex else literal_to_byte_regex(text, case=case)
    if not expression:
        return None
    try:
        return LineFilter(expression)
    except hyperscan.error:
        return None
