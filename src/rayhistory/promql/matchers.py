"""Label matchers. Regular expressions are RE2's, as in Prometheus, and take linear time for any pattern."""

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import re2

from rayhistory.promql.labels import METRIC_NAME
from rayhistory.promql.query_errors import NotSupported, QuerySyntaxError

Predicate: TypeAlias = Callable[[str], bool]


_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_LITERAL = re.compile(r"(?:[\w:@/ ,=-]|\\[.+*?()\[\]{}^$/-])*", re.ASCII)
_ESCAPED = re.compile(r"\\(.)")


def compile_pattern(pattern: str) -> "re.Pattern[str] | None":
    """Compile a regular expression that must match the whole text; None if it is invalid."""
    try:
        compiled: re.Pattern[str] = re2.compile(f"^(?s:{pattern})$", _OPTIONS)
    except re2.error:
        return None
    return compiled


def literal_alternatives(pattern: str) -> frozenset[str] | None:
    """Return the texts that `a|b` or `(a|b)` matches; None for other patterns.

    Variables of Grafana dashboards become such patterns, with one alternative per node.
    """
    inner = pattern[1:-1] if pattern.startswith("(") and pattern.endswith(")") else pattern
    alternatives = inner.split("|")
    if not all(map(_LITERAL.fullmatch, alternatives)):
        return None
    return frozenset(_ESCAPED.sub(r"\1", each) for each in alternatives)


class Matcher(msgspec.Struct, frozen=True):
    name: str
    operator: str
    """One of `=`, `!=`, `=~`, `!~`."""
    value: str

    def predicate(self) -> Predicate:
        """Return a function that tells whether a label's value matches. A missing label has the value ""."""
        expected = self.value
        if self.operator == "=":
            return lambda value: value == expected
        if self.operator == "!=":
            return lambda value: value != expected
        if expected in (".*", ".+"):
            return lambda value: (expected == ".*" or bool(value)) == (self.operator == "=~")
        literals = literal_alternatives(expected)
        if literals is not None:
            return literals.__contains__ if self.operator == "=~" else lambda value: value not in literals
        pattern = compile_pattern(expected)
        if pattern is None:
            raise QuerySyntaxError(f"invalid regular expression {expected!r} for label {self.name}")
        if self.operator == "=~":
            return lambda value: pattern.search(value) is not None
        return lambda value: pattern.search(value) is None


_OPERATORS = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}


def matchers_of(selector: Any) -> tuple[Matcher, ...]:
    """Return the matchers of a parsed vector selector, its metric name included."""
    found = each_matcher(selector)
    if all(matcher.predicate()("") for matcher in found):
        raise QuerySyntaxError("vector selector must contain at least one non-empty matcher")
    return found


def each_matcher(selector: Any) -> tuple[Matcher, ...]:
    """Return the matchers of a selector, which may match every series."""
    if selector.matchers.or_matchers:
        raise NotSupported("`or` between label matchers is not supported")
    found = [
        Matcher(each.name, _OPERATORS[str(each.op).rpartition(".")[2]], each.value)
        for each in selector.matchers.matchers
    ]
    if selector.name:
        found.append(Matcher(METRIC_NAME, "=", selector.name))
    return tuple(found)
