"""Read a window of a log file's lines by offset, line, time or from the end, with few range reads for any file size."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from rayhistory.errors import UsageError
from rayhistory.logs.source import LogSource, StoredLogFile, start_of_last_lines
from rayhistory.search.line_times import line_ms
from rayhistory.search.scan_plan import UNIT_BYTES

WINDOW_BYTES = 256 << 10
MAX_LINES = 1000
LINES_ABOVE = 20
_MAX_LINE_BYTES = 16 << 10
_MAX_COUNTED_BYTES = 256 << 20
_PROBE_BYTES = 64 << 10

LineBreaks = Mapping[int, int]
"""The number of line breaks in a file's units that the search index has, by the offset of the unit."""
NO_LINE_BREAKS: LineBreaks = MappingProxyType({})


class WindowLine(msgspec.Struct, frozen=True):
    offset: int
    number: int | None
    text: str
    cut: bool = False


class LogWindow(msgspec.Struct, frozen=True):
    lines: list[WindowLine]
    start: int
    end: int
    size: int


class Position(msgspec.Struct, frozen=True):
    """The start of a line, and its number if that is known."""

    offset: int
    number: int | None


async def find_line(
    logs: LogSource, node: str, file: StoredLogFile, number: int, breaks: LineBreaks = NO_LINE_BREAKS
) -> Position:
    """Return the position of a line, or of the last line if the file is shorter."""
    position, current, counted = 0, 1, 0
    while position < file.size:
        end = min(position + UNIT_BYTES, file.size)
        known = breaks.get(position) if end - position == UNIT_BYTES else None
        if known is not None and current + known < number:
            position, current = end, current + known
            continue
        if counted >= _MAX_COUNTED_BYTES:
            raise UsageError(f"line {number} is too far from the start of the file: open a time or an offset instead")
        chunk = await logs.read(node, file.path, position, end)
        found = chunk.count(b"\n")
        if current + found >= number:
            at = 0
            for _ in range(number - current):
                at = chunk.index(b"\n", at) + 1
            return Position(position + at, number)
        position, current, counted = end, current + found, counted + len(chunk)
    return await find_end(logs, node, file, 1)


async def find_time(logs: LogSource, node: str, file: StoredLogFile, ms: int) -> Position:
    """Return the position of the first line at or after a time, by binary search. Lines must be ordered by time."""
    low, high = 0, file.size
    while high - low > _PROBE_BYTES:
        middle = (low + high) // 2
        found = await _first_time(logs, node, file, middle, high)
        if found is None or found[0] >= ms:
            high = middle
        else:
            low = found[1]
    for offset, line in _split(await logs.read(node, file.path, low, min(high + _PROBE_BYTES, file.size)), low):
        at = line_ms(line)
        if at is not None and at >= ms:
            return Position(offset, None)
    return Position(await _line_start(logs, node, file, high), None)


async def find_end(logs: LogSource, node: str, file: StoredLogFile, lines: int = 200) -> Position:
    return Position(await start_of_last_lines(logs, node, file.path, file.size, lines), None)


async def number_position(
    logs: LogSource, node: str, file: StoredLogFile, position: Position, breaks: LineBreaks = NO_LINE_BREAKS
) -> Position:
    """Add the line number, unless too many bytes would have to be read to count the lines before."""
    if position.number is not None:
        return position
    number, counted = 1, 0
    for start in range(0, position.offset, UNIT_BYTES):
        end = min(start + UNIT_BYTES, position.offset)
        if end - start == UNIT_BYTES and start in breaks:
            number += breaks[start]
            continue
        counted += end - start
        if counted > _MAX_COUNTED_BYTES // 4:
            return position
        number += (await logs.read(node, file.path, start, end)).count(b"\n")
    return Position(position.offset, number)


async def read_window(logs: LogSource, node: str, file: StoredLogFile, position: Position, above: int) -> LogWindow:
    """Read lines, starting `above` lines before a position."""
    begin = await _line_start(logs, node, file, position.offset)
    start = await start_of_last_lines(logs, node, file.path, begin, above) if above else begin
    start = max(start, begin - WINDOW_BYTES // 2)
    data = await logs.read(node, file.path, start, min(start + WINDOW_BYTES, file.size))
    number = position.number
    if number is not None:
        number -= data.count(b"\n", 0, begin - start)
    return _window(data, start, file.size, number)


def _window(data: bytes, start: int, size: int, number: int | None) -> LogWindow:
    lines: list[WindowLine] = []
    end = start
    for offset, line in _split(data, start):
        is_whole = offset + len(line) < start + len(data) or start + len(data) >= size
        if len(lines) == MAX_LINES or (lines and not is_whole):
            break
        text = line[:_MAX_LINE_BYTES].decode(errors="replace")
        lines.append(WindowLine(offset, number, text, cut=len(line) > _MAX_LINE_BYTES or not is_whole))
        number = None if number is None else number + 1
        end = min(offset + len(line) + 1, size)
    return LogWindow(lines, start, end, size)


def _split(data: bytes, offset: int) -> list[tuple[int, bytes]]:
    """Split a chunk into lines with their offsets. An empty text after the last line break is not a line."""
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    found = []
    for line in lines:
        found.append((offset, line))
        offset += len(line) + 1
    return found


async def _line_start(logs: LogSource, node: str, file: StoredLogFile, offset: int) -> int:
    """Return the start of the line that contains an offset; the offset if the line starts over 64 KiB before it."""
    offset = min(max(0, offset), file.size)
    first = max(0, offset - _PROBE_BYTES)
    found = (await logs.read(node, file.path, first, offset)).rfind(b"\n")
    return first + found + 1 if found >= 0 else (0 if first == 0 else offset)


async def _first_time(logs: LogSource, node: str, file: StoredLogFile, start: int, end: int) -> tuple[int, int] | None:
    """Return the first time of a line that starts after `start`, and the offset of that line; None without times."""
    for begin in range(start, end, _PROBE_BYTES):
        chunk = await logs.read(node, file.path, begin, min(begin + _PROBE_BYTES, end))
        for offset, line in _split(chunk, begin)[1:]:
            at = line_ms(line)
            if at is not None:
                return at, offset
    return None
