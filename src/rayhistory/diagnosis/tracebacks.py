"""Parse Python tracebacks as Ray stores them: the exception, its message, and the last frame outside of libraries."""

import re
from functools import lru_cache
from itertools import pairwise

import msgspec

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_FRAME = re.compile(r'^ {2}File "([^"\n]*)", line (\d+), in ([^\n]*)$', re.MULTILINE)
_EXCEPTION = re.compile(r"^([A-Za-z_][A-Za-z0-9_.]*(?:\([A-Za-z0-9_., ]*\))?)(?::[ \n]?(.*))?$", re.MULTILINE)
TRACEBACK_HEADER = "Traceback (most recent call last):"
DIRECT_CAUSE = "The above exception was the direct cause of the following exception:"
_CHAINED = re.compile(
    rf"^(?:{DIRECT_CAUSE}|During handling of the above exception, another exception occurred:)$", re.MULTILINE
)
_WITHOUT_FRAMES = re.compile(
    r"ray::[^\n]{0,300}\(pid=\d+[^\n]{0,300}\)\n(?: {4}[^\n]*\n){0,9}([A-Za-z_][A-Za-z0-9_.]*)(?::[ \n]?(.*))?(?:\n|$)"
)
"""The error of a streaming generator, from whose traceback Ray omits the lines with files."""
_FORWARDED = re.compile(r"^\((?:raylet|autoscaler|[^()\n]{0,200}?pid=\d+)[^()\n]{0,200}\) ?.*$", re.MULTILINE)
_RETRIED = re.compile(
    r"^\((?:raylet|[^()\n]{0,200}?pid=\d+)[^()\n]{0,200}\) Task [^\n]{1,300} failed\. There are [^\n]{1,40} remaining, "
    r"so the task will be retried\. Error: ",
    re.MULTILINE,
)
"""The first line of a retried task's error, which Ray also forwards. Its other lines have no mark."""
_RETRIED_END = re.compile(rf"^{TRACEBACK_HEADER[:9]}|^\([^()\n]{{0,200}}\) | \[repeated \d{{1,9}}x ", re.MULTILINE)
_USER_EXCEPTION = "User exception:\n"
_MAX_FORWARDED = 500
"""Ray keeps this many characters at the end of the error of a task."""
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "python/ray/", "<frozen ")
WRAPPERS = ("UserCodeException",)
"""Exceptions with which a library wraps the one of a user's function (`raise … from`)."""
_NOT_EXCEPTIONS = {"During", "The", "Traceback", "Job", "Running", "System", "User", "CreationTaskError"}
_REMOTE = "ray::"
"""Text that Ray writes before a task's frames in the error of its caller."""
_MAX_CHARS = 64_000
_MAX_MESSAGE = 300
_MAX_MESSAGE_LINES = 4
_MAX_FRAMELESS_LINES = 3
"""Maximum number of lines before the first stack frame of a text that is a traceback as a whole."""
_MIN_LINES = 8
_MAX_LINE = 1_000


class StackFrame(msgspec.Struct, frozen=True):
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


class RaisedException(msgspec.Struct, frozen=True):
    """The innermost exception of a text, which was raised first."""

    type: str
    message: str
    frame: StackFrame | None
    outer: tuple[str, ...]
    """Types of the outer exceptions, such as `ray.exceptions.RayTaskError(ValueError)`."""

    @property
    def short_type(self) -> str:
        return self.type.partition("(")[0].rpartition(".")[2]

    def __str__(self) -> str:
        return f"{self.short_type}: {self.message}" if self.message else self.short_type


def is_coroutine_frame(frame: StackFrame) -> bool:
    """Return True for the frame in which an async actor waits for a coroutine. Ray may leave out the others."""
    return frame.file.endswith("/concurrent/futures/_base.py")


def plain_text(text: str) -> str:
    """Remove terminal colours and limit the length. The end of the text is kept, because it has the cause."""
    return _ANSI.sub("", text[-_MAX_CHARS:])


def own_output(text: str) -> str:
    """Remove the lines that Ray forwards from workers into the output of a driver."""
    return _FORWARDED.sub("", _without_retried(plain_text(text)))


def _without_retried(text: str) -> str:
    """Remove the errors of retried tasks, which look like the driver's own."""
    kept, end = [], 0
    for found in _RETRIED.finditer(text):
        if found.start() >= end:
            kept.append(text[end : found.start()])
            end = _end_of_error(text, found.end())
    return "".join([*kept, text[end:]])


def _end_of_error(text: str, start: int) -> int:
    """Return the end of a forwarded error. It ends at the next mark, or at its maximum length."""
    if not text.startswith(_USER_EXCEPTION, start):
        return _end_of_line(text, start)
    start += len(_USER_EXCEPTION)
    limit = min(start + _MAX_FORWARDED, len(text))
    if mark := _RETRIED_END.search(text, start, limit + 1):
        return _end_of_line(text, mark.start()) if mark[0].startswith(" ") else mark.start()
    if limit == start + _MAX_FORWARDED and text[limit : limit + 1] in ("", "\n"):
        return _end_of_line(text, limit)
    raised = (line for line in _EXCEPTION.finditer(text, start, limit) if line[2] or _is_exception(line[1]))
    return _end_of_line(text, max((line.end() for line in raised), default=start))


def _end_of_line(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end + 1


@lru_cache(maxsize=2048)
def parse_exception(text: str) -> RaisedException | None:
    """Return the exception after the last frame of a traceback; None if there is none."""
    text = plain_text(text)
    frames = list(_FRAME.finditer(text))
    start = text.rfind(_REMOTE)
    remote = [frame for frame in frames if frame.start() > start]
    if not remote and start >= 0 and (found := _WITHOUT_FRAMES.match(text, start)):
        return RaisedException(found[1], _message(found[2]), None, _outer(text[:start]))
    frames = remote or frames
    if not frames:
        return None
    rest = text[frames[-1].end() :]
    raised = _exception_after(rest)
    if raised is None:
        return None
    return RaisedException(raised[0], raised[1], _user_frame(frames), _outer(text[: frames[-1].start()]))


def _exception_after(rest: str) -> tuple[str, str] | None:
    for match in _EXCEPTION.finditer(rest):
        if match[1] not in _NOT_EXCEPTIONS:
            return match[1], _message(match[2])
    return None


def _message(text: str | None) -> str:
    return (text or "").strip()[:_MAX_MESSAGE]


def _outer(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(match[1] for match in _EXCEPTION.finditer(text) if _is_exception(match[1])))


def _is_exception(name: str) -> bool:
    return name.endswith(("Error", "Exception", ")")) and name not in _NOT_EXCEPTIONS


def _user_frame(frames: list[re.Match[str]]) -> StackFrame | None:
    own = [frame for frame in frames if not any(part in frame[1] for part in _LIBRARIES)]
    last = (own or frames)[-1]
    return StackFrame(last[1], int(last[2][:9]), last[3][:200])


def cut_lines(text: str) -> str:
    """Shorten long lines, so that a long message does not push a traceback out of a limited text."""
    return "\n".join(line if len(line) <= _MAX_LINE else _cut(line) for line in text.split("\n"))


def _cut(line: str) -> str:
    return f"{line[: _MAX_LINE // 2]} … ({len(line):,} characters) … {line[-_MAX_LINE // 2 :]}"


def last_traceback(text: str) -> str:
    """Return the last traceback of an output, with the exceptions that led to it.

    Only the end of a long output is read. If no traceback begins in it, return it.
    """
    text = plain_text(text)
    start = text.rfind(TRACEBACK_HEADER)
    if start < 0:
        return text
    while (cause := text.rfind(TRACEBACK_HEADER, 0, start)) >= 0 and _CHAINED.search(text[cause:start].rstrip()[-100:]):
        start = cause
    return text[start:]


def chained_exceptions(text: str) -> list[str]:
    """Return the parts of a traceback, one for each exception of its chain. The last exception is first."""
    return _CHAINED.split(last_traceback(text))[::-1]


def direct_causes(text: str) -> list[str]:
    """Return the tracebacks of the exceptions that the last one was raised from (`raise … from error`).

    Exceptions that were only being handled when it was raised are left out.
    """
    text = last_traceback(text)
    ends = list(_CHAINED.finditer(text))
    causes = []
    while ends and ends[-1][0] == DIRECT_CAUSE:
        end = ends.pop()
        causes.append(text[ends[-1].end() if ends else 0 : end.start()])
    return causes


def chain_ends(text: str) -> list[int]:
    """Return the position in the text at which each exception of a chain ends."""
    return [*(found.start() for found in _CHAINED.finditer(text)), len(text)]


# Excerpts


def excerpt(text: str, max_lines: int, max_chars: int = _MAX_CHARS) -> str:
    """Return the last lines of a text. If they would begin inside a traceback, return a shortened traceback instead.

    It has the beginning of the traceback, the last frame outside of libraries, and the exception.
    """
    if len(text) > _MAX_CHARS:
        text = f"{text[: _MAX_CHARS // 4]}\n  …\n{text[-_MAX_CHARS * 3 // 4 :]}"
    shown = _last_lines(text, max_lines)
    while len(shown) > max_chars and max_lines > _MIN_LINES:
        max_lines = max_lines * 2 // 3
        shown = _last_lines(text, max_lines)
    return shown[-max_chars:]


def _last_lines(text: str, max_lines: int) -> str:
    lines = text.splitlines()
    if len(lines) <= max_lines:
        return text
    start = max((number for number, line in enumerate(lines) if line.startswith(TRACEBACK_HEADER)), default=0)
    frames = [number for number in range(start, len(lines)) if _FRAME.match(lines[number])]
    is_whole = bool(frames) and start == 0 and frames[0] <= _MAX_FRAMELESS_LINES
    if frames and (is_whole or frames[-1] >= len(lines) - max_lines):
        return "\n".join(_shortened(lines[start:], [number - start for number in frames], max_lines))
    return "\n".join(lines[-max_lines:])


def _shortened(lines: list[str], frames: list[int], max_lines: int) -> list[str]:
    kept: set[int] = set()
    order = sorted(enumerate(_ranks(lines, frames)), key=lambda each: (each[1], -each[0]))
    for number, _ in order[: 4 * max_lines]:
        if _height(kept | {number}, len(lines)) <= max_lines:
            kept.add(number)
    shown, end = [], 0
    for number in [*sorted(kept), len(lines)]:
        if number > end:
            shown.append(f"  … {number - end} lines left out" if number - end > 1 else lines[end])
        shown += lines[number : number + 1]
        end = number + 1
    return shown


def _height(kept: set[int], total: int) -> int:
    """Return the number of lines of an excerpt, with one line for each gap."""
    bounds = sorted({-1, *kept, total})
    return len(kept) + sum(later - earlier > 1 for earlier, later in pairwise(bounds))


def _ranks(lines: list[str], frames: list[int]) -> list[int]:
    """Return the importance of each line of a traceback; 0 is the highest."""
    blocks = [range(start, _block_end(lines, start)) for start in frames]
    is_own = [not any(part in lines[start] for part in _LIBRARIES) for start in frames]
    after = blocks[-1].stop
    ranks = [2 if number < after else 3 for number in range(len(lines))]
    for block, own in zip(blocks, is_own, strict=True):
        for number in block:
            ranks[number] = 2 if own else 4
    last_own = max((place for place, own in enumerate(is_own) if own), default=len(blocks) - 1)
    for number in (*blocks[0], *blocks[-1], *range(after, min(after + _MAX_MESSAGE_LINES, len(lines)))):
        ranks[number] = 1
    for number in (0, len(lines) - 1, *blocks[0][:1], *blocks[last_own][:2], *range(after, min(after + 1, len(lines)))):
        ranks[number] = 0
    return ranks


def _block_end(lines: list[str], start: int) -> int:
    """Return the number of the first line after a frame and its source line."""
    end = start + 1
    while end < len(lines) and lines[end].startswith("    "):
        end += 1
    return end
