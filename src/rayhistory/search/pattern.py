"""A pattern that finds lines in buffers: a text or a regular expression, with RE2 in linear time."""

import asyncio
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import re2

from rayhistory.errors import RateLimited, UsageError
from rayhistory.logs.source import Content
from rayhistory.search.line_filter import make_filter
from rayhistory.search.pattern_syntax import check_pattern, required_literal, to_line_regex

_MAX_PROGRAM_BYTES = 8 << 20
_LARGE_PROGRAM = 50_000
"""Number of instructions from which a program counts as large. It needs megabytes of memory."""
_MAX_LARGE_PATTERNS, _MAX_LARGE_PATTERNS_OF_VISITOR = 8, 2
_RETRY_AFTER_S = 5.0
_MAX_SHOWN_ERROR = 200
_WORD = (
    r"\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}"
    r"\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}"
)
"""Word characters, as in ripgrep's --word-regexp."""

Span = tuple[int, int]


class SearchPattern:
    """Finds matching lines. `regex`: the text is a regular expression. `word`: matches must be whole words."""

    def __init__(self, text: str, *, regex: bool = False, case: bool = False, word: bool = False) -> None:
        check_pattern(text)
        self.case = case
        self.required_text = required_literal(text) if regex else text
        """A text that every match contains; empty if none is known."""
        self._required = self.required_text.encode() if case else b""
        expression = to_line_regex(text) if regex else re2.escape(text)
        if word:
            _compile(expression, case=case)  # its error would quote the text around the user's pattern
        self._group = 1 if word else 0
        after = rf"({expression})(?:$|[^{_WORD}])"
        program = _compile(f"(?:^|[^{_WORD}]){after}" if word else expression, case=case)
        self._search = program.search
        self.is_large = program.programsize >= _LARGE_PROGRAM
        self._filter = make_filter(to_line_regex(text) if regex else text, regex=regex, case=case)
        self._search_next = _compile(f"[^{_WORD}]{after}", case=case).search if word else self._search
        """Finds the next match. The search starts at the last character of the previous match."""

    def lines(self, buffer: Content, start: int, end: int) -> Iterator[Span]:
        """Yield the matching lines of [start, end), without line breaks. A line must start at `start`."""
        last = end - 1 if end > start and buffer[end - 1] == ord("\n") else end
        position, lines = start, 0
        while self._filter and position < end and self._filter.is_useful(lines, position - start):
            candidate = self._filter.candidate(buffer, position, last)
            if candidate is None:
                return
            begin, stop = _line_around(buffer, candidate, position, end)
            if self._search(buffer, begin, stop):
                yield begin, stop
            position, lines = stop + 1, lines + 1
        if self._required not in buffer:
            return
        while position < end:
            match = self._search(buffer, position, last)
            if match is None:
                return
            begin, stop = _line_around(buffer, match.start(self._group), position, end)
            yield begin, stop
            position = stop + 1

    def spans(self, line: bytes, max_spans: int) -> list[Span]:
        """Return the first matches in one line, from left to right, without overlaps and empty matches."""
        found: list[Span] = []
        position, search = 0, self._search
        while position <= len(line) and len(found) < max_spans:
            match = search(line, position)
            if match is None:
                break
            begin, end = match.span(self._group)
            next_position = end if end > position else position + 1
            if begin < end:
                found.append((begin, end))
                if self._group:  # the character before the next word may be the last one of this match
                    next_position, search = _last_character(line, begin, end), self._search_next
            position = next_position
        return found


class PatternCompiler:
    """Compiles the patterns of visitors in one thread, and limits the number of large patterns in memory.

    A large pattern takes a fraction of a second. Each visitor's patterns are compiled one after another.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "pattern")
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._large: weakref.WeakKeyDictionary[SearchPattern, str] = weakref.WeakKeyDictionary()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def compile(
        self, text: str, visitor: str, *, regex: bool = False, case: bool = False, word: bool = False
    ) -> SearchPattern:
        """Raise UsageError for an invalid pattern, and RateLimited if there are too many large patterns."""
        compile_pattern = partial(SearchPattern, text, regex=regex, case=case, word=word)
        async with self._locks.setdefault(visitor, asyncio.Lock()):
            pattern = await asyncio.get_running_loop().run_in_executor(self._thread, compile_pattern)
        if pattern.is_large:
            visitors = list(self._large.values())
            if len(visitors) >= _MAX_LARGE_PATTERNS or visitors.count(visitor) >= _MAX_LARGE_PATTERNS_OF_VISITOR:
                raise RateLimited(
                    "too many searches with large patterns at once: use a simpler pattern, or retry", _RETRY_AFTER_S
                )
            self._large[pattern] = visitor
        return pattern


def _line_around(buffer: Content, position: int, start: int, end: int) -> Span:
    """Return the bounds of a line in [start, end). A line must start at `start`."""
    begin = buffer.rfind(b"\n", start, position) + 1 or start
    stop = buffer.find(b"\n", position, end)
    return begin, end if stop < 0 else stop


def _last_character(line: bytes, begin: int, end: int) -> int:
    """Return the start of the last UTF-8 character before `end`."""
    position = end - 1
    while position > begin and line[position] & 0xC0 == 0x80:
        position -= 1
    return position


def _compile(expression: str, *, case: bool) -> "re2._Regexp":
    options = re2.Options()
    options.never_nl = True
    options.log_errors = False
    options.case_sensitive = case
    options.max_mem = _MAX_PROGRAM_BYTES
    try:
        return re2.compile(f"(?m){expression}".encode(), options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        reason = reason.replace("(?m)", "", 1)  # not a part of the visitor's pattern
        raise UsageError(f"invalid pattern: {reason[:_MAX_SHOWN_ERROR]}") from None
