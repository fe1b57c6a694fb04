"""Search one unit of a log file: match whole buffers, and split lines only at matches. Pure functions."""

import heapq
from collections.abc import Iterator

import msgspec

from rayhistory.logs.source import Content
from rayhistory.search.hit_counts import TimeHistogram
from rayhistory.search.line_breaks import count_line_breaks
from rayhistory.search.line_times import InheritedTimes, line_ms
from rayhistory.search.pattern import SearchPattern, Span
from rayhistory.search.scan_plan import LogUnit
from rayhistory.search.search_query import SortKey

MAX_TEXT_CHARS = 4096
MAX_SPANS = 100
_WINDOW_BYTES = 4 * MAX_TEXT_CHARS


class UnitBuffer(msgspec.Struct, frozen=True):
    """Bytes of a file around a unit: from before its first line to the end of its last line."""

    data: Content
    offset: int
    """Offset of the data in the file."""


class FoundLine(msgspec.Struct):
    """A matching line. Its number and the lines around it are added later, because they may need other units."""

    key: SortKey
    node: str
    path: str
    offset: int
    end: int
    """The end of the line in the file, without its line break."""
    text: str
    matches: list[Span]
    """Start and end of each match, in characters of `text`."""
    at_ms: int
    approximate: bool
    """True if the time is that of an earlier line, or of the upload."""
    cut: bool
    unit_start: int
    lines_since: int
    """Number of line breaks between the start of the unit and the line."""
    line: int | None = None
    before: list[str] = []
    after: list[str] = []


class UnitQuery(msgspec.Struct, frozen=True):
    pattern: SearchPattern
    newest_first: bool
    keep: int
    """Maximum number of lines to return: the first in the order of results."""
    from_ms: int | None = None
    to_ms: int | None = None
    after: SortKey | None = None
    """Return only lines after this one."""


class UnitResult(msgspec.Struct):
    count: int
    """Number of all matching lines in the unit."""
    best: list[FoundLine]
    line_breaks: int
    """Number of line breaks in the unit."""
    times: TimeHistogram = msgspec.field(default_factory=TimeHistogram)


def line_bounds(unit: LogUnit, buffer: UnitBuffer) -> Span | None:
    """Return the start and the end of a unit's lines in its buffer; None if no line starts in the unit."""
    data, begin, end = buffer.data, unit.start - buffer.offset, unit.end - buffer.offset
    first = begin
    if unit.start > 0:
        found = data.find(b"\n", begin - 1, end - 1)
        if found < 0:
            return None
        first = found + 1
    if first >= end:
        return None
    stop = data.find(b"\n", end - 1)
    return first, len(data) if stop < 0 else stop + 1


def search_unit(unit: LogUnit, buffer: UnitBuffer, query: UnitQuery) -> UnitResult:
    data = buffer.data
    breaks = count_line_breaks(data, unit.start - buffer.offset, unit.end - buffer.offset)
    bounds = line_bounds(unit, buffer)
    if bounds is None:
        return UnitResult(0, [], breaks)
    count, times, inherited = 0, TimeHistogram(), InheritedTimes(data)

    def candidates() -> Iterator[tuple[SortKey, int, int, bool]]:
        nonlocal count
        for begin, end in query.pattern.lines(data, *bounds):
            at_ms, approximate = _time_of(unit, data, begin, end, inherited)
            if not (query.from_ms or 0) <= at_ms < (query.to_ms or 1 << 62):
                continue
            count += 1
            times.add(at_ms)
            sign = -1 if query.newest_first else 1
            key = SortKey(sign * at_ms, unit.file.node, unit.file.path, sign * (buffer.offset + begin))
            if query.after is None or key > query.after:
                yield key, begin, end, approximate

    chosen = heapq.nsmallest(max(1, query.keep), candidates(), key=lambda each: each[0])[: query.keep]
    return UnitResult(count, _lines(unit, buffer, query.pattern, chosen), breaks, times)


def _time_of(unit: LogUnit, data: Content, begin: int, end: int, times: InheritedTimes) -> tuple[int, bool]:
    own = line_ms(data[begin : min(end, begin + 200)])
    if own is not None:
        return own, False
    inherited = times.before(begin)
    return (unit.flushed_ms if inherited is None else inherited), True


def _lines(
    unit: LogUnit, buffer: UnitBuffer, pattern: SearchPattern, chosen: list[tuple[SortKey, int, int, bool]]
) -> list[FoundLine]:
    """Return the chosen lines. Line breaks are counted once, from line to line."""
    described: dict[SortKey, FoundLine] = {}
    position, breaks = unit.start - buffer.offset, 0
    for key, begin, end, approximate in sorted(chosen, key=lambda each: each[1]):
        breaks += buffer.data.count(b"\n", position, begin)
        position = begin
        text, matches, cut = shown_line(bytes(buffer.data[begin:end]), pattern)
        described[key] = FoundLine(
            key=key, node=unit.file.node, path=unit.file.path, offset=buffer.offset + begin, end=buffer.offset + end,
            text=text, matches=matches, at_ms=abs(key.rank), approximate=approximate, cut=cut, unit_start=unit.start,
            lines_since=breaks,
        )  # fmt: skip
    return [described[key] for key, *_ in chosen]


def shown_line(line: bytes, pattern: SearchPattern) -> tuple[str, list[Span], bool]:
    """Return a line as text, cut to 4,096 characters around its first match, with its matches in characters."""
    cut = False
    if len(line) > _WINDOW_BYTES:
        first = next(iter(pattern.spans(line, 1)), (0, 0))[0]
        begin = _character_start(line, max(0, first - _WINDOW_BYTES // 2))
        line, cut = line[begin : begin + _WINDOW_BYTES], True
    spans = pattern.spans(line, MAX_SPANS)
    text, matches = _decode(line, spans)
    if len(text) > MAX_TEXT_CHARS:
        first = matches[0][0] if matches else 0
        begin = max(0, min(first - MAX_TEXT_CHARS // 4, len(text) - MAX_TEXT_CHARS))
        text, cut = text[begin : begin + MAX_TEXT_CHARS], True
        shifted = [(start - begin, min(end - begin, MAX_TEXT_CHARS)) for start, end in matches]
        matches = [span for span in shifted if 0 <= span[0] < MAX_TEXT_CHARS]
    return text, matches, cut


def _character_start(line: bytes, position: int) -> int:
    """Move a position back to the start of a UTF-8 character."""
    for start in range(position, max(position - 4, 0), -1):
        if line[start] & 0xC0 != 0x80:
            return start
    return position


def _decode(line: bytes, spans: list[Span]) -> tuple[str, list[Span]]:
    if line.isascii():
        return line.decode(), spans
    parts, matches, position, length = [], [], 0, 0
    for begin, end in spans:
        before, match = line[position:begin].decode(errors="replace"), line[begin:end].decode(errors="replace")
        parts += [before, match]
        matches.append((length + len(before), length + len(before) + len(match)))
        position, length = end, matches[-1][1]
    return "".join([*parts, line[position:].decode(errors="replace")]), matches
