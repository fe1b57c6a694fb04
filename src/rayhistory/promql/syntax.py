"""The parsed query: a thin layer over `promql-parser`. The engine walks the syntax tree that it returns."""

import re
from collections.abc import Iterator
from datetime import timedelta
from functools import lru_cache
from typing import Any

import msgspec
import promql_parser as nodes

from rayhistory.promql.durations import computed_durations
from rayhistory.promql.info_selector import InfoSelector, with_accepted_selectors
from rayhistory.promql.matchers import Matcher, matchers_of
from rayhistory.promql.query_errors import NotSupported, QuerySyntaxError
from rayhistory.promql.unsupported_syntax import check_unsupported

MAX_QUERY_CHARACTERS = 20_000
_CACHED_QUERIES = 256
"""Number of parsed queries in a cache.

A query is parsed to find its samples and to evaluate it, and panels repeat queries.
"""
_PANIC = "PanicException"
"""The type of errors of the parser that it does not expect, such as numbers that are no durations. It is no Exception,
and cannot be imported.
"""
_MAX_TIME_S = 2**63 / 1e6
"""Limit of fixed times in seconds. Sums of such times in milliseconds remain within 64 bits."""
MAX_DEPTH = 200
"""Maximum nesting of expressions. The parser is recursive, and would end the process on a stack overflow."""
_QUOTED = re.compile(
    r"""#[^\n]*+|"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|'(?:[^'\\]|\\.)*+(?:'|\\?\Z)|`[^`]*+(?:`|\Z)""", re.DOTALL
)
"""A pattern for strings.

It matches an unterminated string to the end, as trying each character would take quadratic time.
"""
_ESCAPES = re.compile(r"((?:\\x[0-9a-fA-F]{2}|\\[0-7]{3})+)|\\.", re.DOTALL)
_FIRST_NOT_ASCII = 0x80
_OPERATOR = re.compile(r"[-+*/%^]|[=!><]=|[><]|\b(?:and|or|unless|atan2)\b", re.IGNORECASE)
_AT_TIME = re.compile(r"@ (-?[0-9.]+)(?: offset \S+)?$")


@lru_cache(maxsize=_CACHED_QUERIES)
def parse(query: str, step_ms: int = 0, range_ms: int = 0) -> Any:
    """Parse a query. Raise an error with a clear message if it is invalid.

    Durations may depend on the step and the range of its evaluation.
    """
    if len(query) > MAX_QUERY_CHARACTERS:
        raise QuerySyntaxError(f"query is longer than {MAX_QUERY_CHARACTERS} characters")
    if max_depth(query) > MAX_DEPTH:
        raise QuerySyntaxError(f"query has more than {MAX_DEPTH} nested levels or operators")
    text = _QUOTED.sub(_with_characters, query)
    text = computed_durations(text, _QUOTED.sub(_masked, text), step_ms, range_ms)
    code = _QUOTED.sub(_masked, text)
    try:
        return nodes.parse(with_accepted_selectors(text, code))
    except (ValueError, OverflowError) as error:
        check_unsupported(code)
        raise QuerySyntaxError(f"parse error: {error}") from None
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise QuerySyntaxError("parse error: duration out of range") from None


def _masked(quoted: re.Match[str]) -> str:
    return "_" * len(quoted[0])


def _with_characters(quoted: re.Match[str]) -> str:
    r"""Replace bytes such as `\xc3\xbf` in a string by their characters, which the parser does not do."""
    text = quoted[0]
    if text[0] not in "\"'":
        return text
    try:
        return _ESCAPES.sub(_characters, text)
    except ValueError:
        raise QuerySyntaxError(f"invalid label name {text[:80]} or label value: not valid UTF-8") from None


def _characters(escapes: re.Match[str]) -> str:
    codes = escapes[0].split("\\")[1:] if escapes[1] else []
    numbers = [int(code[1:], 16) if code[0] == "x" else int(code, 8) for code in codes]
    return escapes[0] if max(numbers, default=0) < _FIRST_NOT_ASCII else bytes(numbers).decode()


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
    at_s = float(found[1])
    if not abs(at_s) < _MAX_TIME_S:
        raise QuerySyntaxError("parse error: timestamp out of bounds for @ modifier")
    return round(at_s * 1000)


class SampleSelection(msgspec.Struct, frozen=True):
    """Samples that a query needs: series by matchers, times in ms (both inclusive)."""

    matchers: tuple[Matcher, ...]
    start_ms: int
    end_ms: int
    is_at_steps: bool = False
    """True if the query needs only the latest sample at each step."""


def selections(node: Any, start_ms: int, end_ms: int, lookback_ms: int, default_step_ms: int) -> list[SampleSelection]:
    """List all samples that the evaluation from start to end reads."""
    return list(_selections(node, (start_ms, end_ms), (start_ms, end_ms), lookback_ms, default_step_ms))


def _selections(
    node: Any, times: tuple[int, int], query: tuple[int, int], lookback_ms: int, default_step_ms: int
) -> Iterator[SampleSelection]:
    if isinstance(node, nodes.VectorSelector):
        start, end = shifted(node, times, query)
        is_at_steps = node.at is None and offset_ms(node) == 0
        yield SampleSelection(matchers_of(node), start - lookback_ms, end, is_at_steps)
    elif isinstance(node, nodes.MatrixSelector):
        start, end = shifted(node.vector_selector, times, query)
        yield SampleSelection(matchers_of(node.vector_selector), start - milliseconds(node.range), end)
    elif isinstance(node, nodes.SubqueryExpr):
        start, end = shifted(node, times, query)
        inner = start - milliseconds(node.range), end
        for each in _selections(node.expr, inner, query, lookback_ms, default_step_ms):
            yield SampleSelection(each.matchers, each.start_ms, each.end_ms)
    elif isinstance(node, nodes.Call) and node.func.name == "info":
        shift_ms, fixed_ms = info_times(node.args[0], *query)
        start, end = (fixed_ms, fixed_ms) if fixed_ms is not None else times
        yield SampleSelection(InfoSelector.of(node.args).matchers, start - shift_ms - lookback_ms, end - shift_ms)
        yield from _selections(node.args[0], times, query, lookback_ms, default_step_ms)
    else:
        for child in children(node):
            yield from _selections(child, times, query, lookback_ms, default_step_ms)


def shifted(node: Any, times: tuple[int, int], query: tuple[int, int]) -> tuple[int, int]:
    """Apply `@` and `offset` to the times of an evaluation."""
    fixed = fixed_time_ms(node, *query)
    start, end = (fixed, fixed) if fixed is not None else times
    return start - offset_ms(node), end - offset_ms(node)


_SCALAR_FUNCTIONS = frozenset(("scalar", "time", "pi", "start", "end", "range", "step", "min_of", "max_of"))


def info_times(node: Any, start_ms: int, end_ms: int) -> tuple[int, int | None]:
    """Return the offset and the fixed time (`@`) at which `info()` reads its info series.

    Both are taken from the selectors in its first argument, if these agree. Otherwise they are 0 and None.
    """
    found = list(_references(node, [], (start_ms, end_ms)))
    effective = {(0, fixed - offset) if fixed is not None else (offset, None) for offset, fixed in found}
    return next(iter(effective)) if len(effective) == 1 else (0, None)


def _references(node: Any, subqueries: list[Any], query: tuple[int, int]) -> Iterator[tuple[int, int | None]]:
    """Yield offset and fixed time of each selector. A vector without a selector has the time of the evaluation."""
    node = without_parentheses(node)
    if isinstance(node, nodes.MatrixSelector):
        node = node.vector_selector
    if isinstance(node, nodes.VectorSelector):
        offset, fixed = offset_ms(node), fixed_time_ms(node, *query)
        for each in reversed(subqueries):
            if fixed is None:
                offset, fixed = offset + offset_ms(each), fixed_time_ms(each, *query)
        yield offset, fixed
    elif isinstance(node, nodes.SubqueryExpr):
        yield from _references(node.expr, [*subqueries, node], query)
    elif not isinstance(node, nodes.NumberLiteral | nodes.StringLiteral):
        is_call = isinstance(node, nodes.Call)
        if is_call and node.func.name in _SCALAR_FUNCTIONS:
            return
        inside = children(node)[:1] if is_call and node.func.name == "info" else children(node)
        found = [each for child in inside for each in _references(child, subqueries, query)]
        yield from found or [(0, None)]


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
