"""Parse Python tracebacks as Ray stores them: the exception, its message, and the last frame outside of libraries."""

import re
from functools import lru_cache

import msgspec

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_FRAME = re.compile(r'^ {2}File "([^"\n]*)", line (\d+), in ([^\n]*)$', re.MULTILINE)
_EXCEPTION = re.compile(r"^([A-Za-z_][A-Za-z0-9_.]*(?:\([A-Za-z0-9_., ]*\))?)(?::[ \n]?(.*))?$", re.MULTILINE)
_HEADER = "Traceback (most recent call last):"
_FORWARDED = re.compile(r"^\((?:raylet|autoscaler|[^()\n]{0,200}?pid=\d+)[^()\n]{0,200}\) ?.*$", re.MULTILINE)
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "python/ray/", "<frozen ")
_NOT_EXCEPTIONS = {"During", "The", "Traceback", "Job", "Running", "System", "User", "CreationTaskError"}
_REMOTE = "ray::"
"""Text that Ray writes before a task's frames in the error of its caller."""
_MAX_CHARS = 64_000
_MAX_MESSAGE = 300


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
    """Types of the exceptions around it, such as `ray.exceptions.RayTaskError(ValueError)`."""

    @property
    def short_type(self) -> str:
        return self.type.partition("(")[0].rpartition(".")[2]

    def __str__(self) -> str:
        return f"{self.short_type}: {self.message}" if self.message else self.short_type


def plain_text(text: str) -> str:
    """Remove terminal colours and limit the length. The end of the text is kept, because it has the cause."""
    return _ANSI.sub("", text[-_MAX_CHARS:])


def own_output(text: str) -> str:
    """Remove the lines that Ray forwards from workers into the output of a driver."""
    return _FORWARDED.sub("", plain_text(text))


@lru_cache(maxsize=2048)
def parse_exception(text: str) -> RaisedException | None:
    """Return the exception that the text ends with; None if it has no traceback."""
    text = plain_text(text)
    frames = list(_FRAME.finditer(text))
    remote = [frame for frame in frames if frame.start() > text.rfind(_REMOTE)]
    frames = remote or frames
    if not frames:
        return None
    rest = text[frames[-1].end() :]
    raised = _exception_after(rest)
    if raised is None:
        return None
    outer = [match[1] for match in _EXCEPTION.finditer(text[: frames[-1].start()]) if _is_exception(match[1])]
    return RaisedException(raised[0], raised[1], _user_frame(frames), tuple(dict.fromkeys(outer)))


def _exception_after(rest: str) -> tuple[str, str] | None:
    for match in _EXCEPTION.finditer(rest):
        if match[1] not in _NOT_EXCEPTIONS:
            return match[1], (match[2] or "").strip()[:_MAX_MESSAGE]
    return None


def _is_exception(name: str) -> bool:
    return name.endswith(("Error", "Exception", ")")) and name not in _NOT_EXCEPTIONS


def _user_frame(frames: list[re.Match[str]]) -> StackFrame | None:
    own = [frame for frame in frames if not any(part in frame[1] for part in _LIBRARIES)]
    last = (own or frames)[-1]
    return StackFrame(last[1], int(last[2][:9]), last[3][:200])


def last_traceback(text: str) -> str:
    """Return the last traceback of an output, or its end if that has no header."""
    text = plain_text(text)
    start = text.rfind(_HEADER)
    return text[start:] if start >= 0 else text
