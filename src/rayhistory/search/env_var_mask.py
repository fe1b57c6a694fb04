"""Mask the values of environment variables in log lines, as pages do in runtime environments."""

import re

from rayhistory.masking import MASK

_ENV_VARS = re.compile(r"""(?:env_vars|envVars)\\*["']?\s{0,8}[:=]\s{0,8}\{""")
_QUOTE_OR_BRACE = re.compile(r"""\\*["']|[{}]""")
"""A quote or a brace.

In JSON within JSON, quotes have backslashes. A string ends at a quote with as many backslashes as its first quote.
"""

Span = tuple[int, int]


def masked_line(text: str, matches: list[Span] | None = None) -> tuple[str, list[Span]]:
    """Return a line in which values of `env_vars` are masked, and all matches outside of these values.

    The matches have their positions in the new line.
    """
    spans = list(matches or [])
    if "env" not in text:
        return text, spans
    position = 0
    while found := _ENV_VARS.search(text, position):
        begin, end = found.end(), _closing_brace(text, found.end())
        if begin < end:
            text = text[:begin] + MASK + text[end:]
            shift = len(MASK) - (end - begin)
            spans = [_moved(span, begin, end, shift) for span in spans if span[1] <= begin or span[0] >= end]
            end = begin + len(MASK)
        position = end
    return text, spans


def _moved(span: Span, begin: int, end: int, shift: int) -> Span:
    return span if span[1] <= begin else (span[0] + shift, span[1] + shift)


def _closing_brace(text: str, position: int) -> int:
    """Return the end of the object. If it does not end, return the end of the line, so that everything is masked."""
    depth, quote = 1, ""
    for found in _QUOTE_OR_BRACE.finditer(text, position):
        if found[0] in "{}":
            depth += 0 if quote else 1 if found[0] == "{" else -1
            if depth == 0:
                return found.start()
        elif not quote or found[0] == quote:
            quote = "" if quote else found[0]
    return len(text)
