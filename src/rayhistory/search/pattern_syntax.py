"""Patterns of visitors in RE2's syntax: validation, translation to patterns for whole buffers, and required literals.

A buffer has many lines, and a match must be within one of them, as in ripgrep. RE2's `never_nl` removes the newline
from every class. Here, anchors for the ends of the text are translated to the ends of a line.
"""

import re

from rayhistory.errors import UsageError

MAX_PATTERN_BYTES = 60 << 10

TOKEN = re.compile(
    r"""\\Q(?P<quoted>.*?)(?:\\E|\Z)      # a quoted text
      | \\(?:x\{[^}]*(?:\}|\Z)|x..|[pP]\{[^}]*(?:\}|\Z)|.|\Z)   # an escape
      | \[\^?\]?(?:\[:\^?[a-z]+:\]|\\(?:.|\Z)|[^\]\\])*+(?:\]|\Z)  # a class
      | \{[0-9]+(?:,[0-9]*)?\}            # a repetition
      | \(\?(?P<flags>[a-zA-Z-]+)[:)]     # flags
      | .""",
    re.VERBOSE | re.DOTALL,
)
"""The pieces of a pattern.

A class or escape that is not closed is one piece up to the end, so that finding all pieces takes linear time. RE2 then
refuses the pattern.
"""
_QUANTIFIERS = set("*?{+")
_LITERAL_ESCAPE = re.compile(r"\\[^\w\s]")
_LINE_ENDS = {r"\A": "^", r"\z": "$"}


def check_pattern(text: str) -> None:
    """Raise UsageError for a pattern that cannot match any line or is too long."""
    if not text:
        raise UsageError("the pattern is empty: enter a text to search for")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise UsageError("the pattern is not valid Unicode") from None
    if size > MAX_PATTERN_BYTES:
        raise UsageError(f"the pattern is too long: use at most {MAX_PATTERN_BYTES >> 10} KiB")
    if "\n" in text:
        raise UsageError("the pattern contains a line break, but a search finds single lines")


def to_line_regex(pattern: str) -> str:
    """Translate a regular expression for one line to one for a buffer of lines (with `m` and `never_nl` set)."""
    translated = []
    for match in TOKEN.finditer(pattern):
        flags = match["flags"]
        if flags and re.search("-[a-zA-Z]*m", flags):
            raise UsageError("invalid pattern: the flag m cannot be turned off, because ^ and $ match at line ends")
        translated.append(_LINE_ENDS.get(match[0], match[0]))
    return "".join(translated)


def required_literal(pattern: str) -> str:
    """Return a text that every match contains (in any case, if the search ignores case); empty if none is known."""
    if "|" in pattern or "(?" in pattern:
        return ""  # a literal may be optional, or flags may change its meaning
    longest, run = "", ""
    parts = [(match[0], match["quoted"]) for match in TOKEN.finditer(pattern)]
    depth = 0
    for (part, quoted), (following, _) in zip(parts, [*parts[1:], ("", None)], strict=True):
        depth += (part == "(") - (part == ")")
        literal = quoted if quoted is not None else _literal_text(part)
        if literal is None or depth:
            run = ""
        elif following[:1] in _QUANTIFIERS:
            run = "" if quoted is not None else run  # a quantifier repeats or drops the last character alone
            longest = max(longest, run, key=len)
            run = ""
        else:
            run += literal
        longest = max(longest, run, key=len)
    return longest


def _literal_text(part: str) -> str | None:
    if len(part) == 1:
        return None if part in ".^$*+?{}[]()|\\" else part  # a repetition is longer, and no literal either
    return part[1:] if _LITERAL_ESCAPE.fullmatch(part) else None
