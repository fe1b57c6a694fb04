"""Lines around a line of a log file."""

from rayhistory.logs.source import LogSource
from rayhistory.search.unit_search import MAX_TEXT_CHARS, FoundLine

_BYTES_PER_LINE = 4 << 10
_BLOCK_BYTES = 64 << 10


async def read_context(logs: LogSource, line: FoundLine, count: int) -> tuple[list[str], list[str]]:
    """Return up to `count` lines before and after a line, each cut to 4,096 characters."""
    size = max(_BLOCK_BYTES, count * _BYTES_PER_LINE)
    start = max(0, line.offset - size)
    before = await logs.read(line.node, line.path, start, line.offset)
    after = await logs.read(line.node, line.path, line.end + 1, line.end + 1 + size)
    above = before.split(b"\n")[:-1] if before.endswith(b"\n") else []
    if start > 0 and above:
        above = above[1:] if len(above) > 1 else above  # the first one is not whole
    below = after.split(b"\n")
    if below[-1] == b"":
        below.pop()
    return [_shown(each) for each in above[-count:]], [_shown(each) for each in below[:count]]


def _shown(line: bytes) -> str:
    return line[: 4 * MAX_TEXT_CHARS].decode(errors="replace")[:MAX_TEXT_CHARS]
