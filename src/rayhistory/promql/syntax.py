"""The parsed query: a thin layer over `promql-parser`, whose nodes the engine walks."""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec
import promql_parser as nodes

from rayhistory.promql.matchers import Matcher, matchers_of
from rayhistory.promql.query_errors import NotSupported, QuerySyntaxError

MAX_QUERY_CHARACTERS = 20_000
MAX_DEPTH = 200
"""Maximum nesting of expressions. The parser is recursive, and would end the process on a stack overflow."""
_QUOTED = re.compile(
    r"""#[^\n]*+|"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|'(?:[^'\\]|\\.)*+(?:'|\\?\Z)|`[^`]*+(?:`|\Z)""", re.DOTALL
)
"""An unterminated quotation is matched to the end, because trying again at each character would take quadratic time."""
_OPERATOR = re.compile(r"[-+*/%^]|[=!><]=|[><]|\b(?:and|or|unless|atan2)\b", re.IGNORECASE)
_AT_TIME = re.compile(r"@ (-?[0-9.]+)(?: offset \S+)?$")


def parse(query: str) -> Any:
    """Parse a query. Raise an error with a clear message if it is invalid."""
    if len(query) > MAX_QUERY_CHARACTERS:
        raise QuerySyntaxError(f"query is longer than {MAX_QUERY_CHARACTERS} characters")
    if max_depth(query) > MAX_DEPTH:
        raise QuerySyntaxError(f"query has more than {MAX_DEPTH} nested levels or operators")
    try:
        return nodes.parse(query)
    except ValueError as error:
        raise QuerySyntaxError(f"parse error: {error}") from None


def max_depth(query: str) -> int:
    """Return an upper bound of the nesting: the number of brackets and operators."""
    code = _QUOTED.sub("", query)
    depth = deepest = 0
    for character in code:
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        deepest = max(deepest, depth)
    return deepest + sum(1 for _ in _OPERATOR.finditer(code))


def milliseconds(duration: timedelta | None) -> int:
    return round(duration / timedelta(milliseconds=1)) if duration is not None else 0


def offset_ms(node: Any) -> int:
    return milliseconds(node.offset)


def fixed_time_ms(node: Any, start_ms: int, end_ms: int) -> int | None:
    """Return the time of an `@` modifier, or None."""
    if node.at is None:
        return None
    kind = str(node.at.type).rpartition(".")[2]
    if kind == "Start":
        return start_ms
    if kind == "End":
        return end_ms
    # read from the text, because the parser's own value fails for times before 1970
    found = _AT_TIME.search(node.prettify())
    if found is None:
        raise NotSupported("this form of the @ modifier is not supported")
    return round(float(found[1]) * 1000)


class SampleSelection(msgspec.Struct, frozen=True):
    """Samples that a query needs: series by matchers, times in ms (both inclusive)."""

    matchers: tuple[Matcher, ...]
    start_ms: int
    end_ms: int


def selections(node: Any, start_ms: int, end_ms: int, lookback_ms: int, default_step_ms: int) -> list[SampleSelection]:
    """List all samples that the evaluation from start to end reads."""
    return list(_selections(node, (start_ms, end_ms), (start_ms, end_ms), lookback_ms, default_step_ms))


def _selections(
    node: Any, times: tuple[int, int], query: tuple[int, int], lookback_ms: int, default_step_ms: int
) -> Iterator[SampleSelection]:
    if isinstance(node, nodes.VectorSelector):
        start, end = shifted(node, times, query)
        yield SampleSelection(matchers_of(node), start - lookback_ms, end)
    elif isinstance(node, nodes.MatrixSelector):
        start, end = shifted(node.vector_selector, times, query)
        yield SampleSelection(matchers_of(node.vector_selector), start - milliseconds(node.range), end)
    elif isinstance(node, nodes.SubqueryExpr):
        start, end = shifted(node, times, query)
        inner = start - milliseconds(node.range), end
        yield from _selections(node.expr, inner, query, lookback_ms, default_step_ms)
    else:
        for child in children(node):
            yield from _selections(child, times, query, lookback_ms, default_step_ms)


def shifted(node: Any, times: tuple[int, int], query: tuple[int, int]) -> tuple[int, int]:
    """Apply `@` and `offset` to the times of an evaluation."""
    fixed = fixed_time_ms(node, *query)
    start, end = (fixed, fixed) if fixed is not None else times
    return start - offset_ms(node), end - offset_ms(node)


def children(node: Any) -> list[Any]:
    if isinstance(node, nodes.Call):
        return list(node.args)
    if isinstance(node, nodes.BinaryExpr):
        return [node.lhs, node.rhs]
    if isinstance(node, nodes.AggregateExpr):
        return [node.expr] if node.param is None else [node.param, node.expr]
    if isinstance(node, nodes.ParenExpr | nodes.UnaryExpr):
        return [node.expr]
    if isinstance(node, nodes.NumberLiteral | nodes.StringLiteral):
        return []
    raise NotSupported(f"{type(node).__name__} is not supported")


def without_parentheses(node: Any) -> Any:
    while isinstance(node, nodes.ParenExpr):
        node = node.expr
    return node
