"""Arithmetic in durations, such as `rate(x[2 * step()])` and `x offset (1h / 2)`.

The parser knows durations only as literals. Expressions are computed before it gets the query.
"""

import math
import re
from collections.abc import Callable

from rayhistory.promql.query_errors import QuerySyntaxError

_BRACKETS = re.compile(r"\[([^\[\]]*+)\]")
_IS_EXPRESSION = re.compile(r"[-+*/%^(]")
_OFFSET = re.compile(r"\boffset\s*+[-+]?\s*+(?=\(|(?:step|range|min_of|max_of)\s*+\()", re.IGNORECASE)
_TOKEN = re.compile(
    r"\s*(?:(?P<duration>(?:\d+(?:ms|[smhdwy]))+)(?!\w)|(?P<number>(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)(?!\w)"
    r"|(?P<name>[a-z_]+)|(?P<sign>[-+*/%^(),]))",
    re.IGNORECASE,
)
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31536000.0}
_MAX_S = 2**63 / 1e9
"""Maximum duration in seconds. Prometheus stores durations as nanoseconds in 64 bits."""
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2, "^": 4}
_UNARY = 3

Operator = Callable[[float, float], float]


def computed_durations(query: str, code: str, step_ms: int, range_ms: int) -> str:
    """Replace expressions by literals. `code` is the query with masked strings, of the same length."""
    replaced: list[tuple[int, int, str]] = []
    for found in _BRACKETS.finditer(code):
        start = found.start(1)
        for part in found[1].split(":"):
            if _IS_EXPRESSION.search(part):
                duration = _Expression(part, step_ms, range_ms).whole()
                if duration <= 0:
                    raise QuerySyntaxError("duration must be greater than 0")
                replaced.append((start, start + len(part), f"{duration}ms"))
            start += len(part) + 1
    for found in _OFFSET.finditer(code):
        expression = _Expression(code, step_ms, range_ms, found.end())
        duration = expression.first()
        sign = "-" if ("-" in found[0]) != (duration < 0) else ""
        text = f"offset {sign}{abs(duration)}ms" if duration else ""
        replaced.append((found.start(), expression.position, text))
    for start, end, text in sorted(replaced, reverse=True):
        query = query[:start] + text + query[end:]
    return query


class _Expression:
    """A recursive parser. The caller has limited the nesting of the query."""

    def __init__(self, text: str, step_ms: int, range_ms: int, position: int = 0) -> None:
        self._text = text
        self.position = position
        self._known = {"step": step_ms / 1000, "range": range_ms / 1000}

    def whole(self) -> int:
        """Compute the whole text, in ms."""
        value = self._sum(0)
        if self._text[self.position :].strip():
            raise self._error()
        return _milliseconds(value)

    def first(self) -> int:
        """Compute the value at the start of the text, in ms: a function call or an expression in parentheses."""
        return _milliseconds(self._value())

    def _error(self) -> QuerySyntaxError:
        return QuerySyntaxError(f"parse error: bad duration expression: {self._text[self.position :][:80]!r}")

    def _next(self) -> re.Match[str]:
        found = _TOKEN.match(self._text, self.position)
        if found is None:
            raise self._error()
        self.position = found.end()
        return found

    def _sign(self) -> str:
        """Return the next token if it is a sign, else an empty text. Do not move past it."""
        found = _TOKEN.match(self._text, self.position)
        return (found["sign"] or "") if found else ""

    def _expect(self, sign: str) -> None:
        if self._sign() != sign:
            raise self._error()
        self._next()

    def _sum(self, precedence: int) -> float:
        value = self._value()
        while (sign := self._sign()) and _PRECEDENCE.get(sign, -1) > precedence:
            self._next()
            right = self._sum(_PRECEDENCE[sign] - (sign == "^"))
            value = _apply(sign, value, right)
        return value

    def _value(self) -> float:
        found = self._next()
        if found["number"]:
            return float(found["number"])
        if found["duration"]:
            units = re.findall(r"(\d+)(ms|[smhdwy])", found["duration"].lower())
            return sum(float(number) * _UNIT_S[unit] for number, unit in units)
        if found["sign"] in ("-", "+"):
            value = self._sum(_UNARY)
            return -value if found["sign"] == "-" else value
        if found["sign"] == "(":
            value = self._sum(0)
            self._expect(")")
            return value
        name = (found["name"] or "").lower()
        if name in self._known:
            self._expect("(")
            self._expect(")")
            return self._known[name]
        if name not in ("min_of", "max_of"):
            raise self._error()
        self._expect("(")
        left = self._sum(0)
        self._expect(",")
        right = self._sum(0)
        self._expect(")")
        return min(left, right) if name == "min_of" else max(left, right)


def _apply(sign: str, left: float, right: float) -> float:
    if sign in "/%" and right == 0:
        raise QuerySyntaxError("division by zero" if sign == "/" else "modulo by zero")
    operators: dict[str, Operator] = {
        "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
        "%": math.fmod, "^": math.pow,
    }  # fmt: skip
    try:
        return operators[sign](left, right)
    except (OverflowError, ValueError):
        return math.nan


def _milliseconds(seconds: float) -> int:
    if not abs(seconds) < _MAX_S:
        raise QuerySyntaxError("duration out of range")
    return round(seconds * 1000)
