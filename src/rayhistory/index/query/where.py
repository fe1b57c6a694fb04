"""Parse conditions on rows: `state = FAILED and (name ~ train or name ^= "load data")`.

A condition is COLUMN OPERATOR VALUE. Operators: = != < <= > >=, ~ (contains) and ^= (begins with). A value without
quotes ends at `and`, `or` or the parenthesis that closes its group, so `name=my task` needs no quotes.
"""

import re

from rayhistory.errors import UsageError
from rayhistory.index.query.query import AllOf, AnyOf, Condition, Filter

MAX_FILTERS = 32
"""Maximum number of filters in a request. Planning time grows with the square of their number."""
_MAX_DEPTH = 16

_COMPARISON = re.compile(r"\s*(\w+)\s*(!=|<=|>=|\^=|=|<|>|~)\s*")
_OPERATOR_NAMES = {"~": "contains", "^=": "prefix"}
_KEYWORD = re.compile(r"\s(and|or)(?=[\s(]|$)", re.IGNORECASE)  # with \s+, many spaces would take quadratic time
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_USAGE = "use COLUMN OPERATOR VALUE, with one of = != < <= > >= ~ ^=. Combine conditions with and, or and parentheses"


def parse_where(text: str) -> Condition:
    """Parse one expression. `column=` matches rows without a value, `column!=` rows with one."""
    parser = _Parser(text)
    condition = parser.expression(0)
    if parser.rest.strip():
        raise parser.error()
    return condition


def count_filters(condition: Condition) -> int:
    """Return the number of comparisons in a condition."""
    if isinstance(condition, Filter):
        return 1
    return sum(map(count_filters, condition.conditions))


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    @property
    def rest(self) -> str:
        return self._text[self._at :]

    def error(self) -> UsageError:
        return UsageError(f"invalid filter {self._text[:200]!r}: {_USAGE}")

    def expression(self, depth: int) -> Condition:
        """Parse terms that are joined by `or`. `and` has precedence."""
        if depth > _MAX_DEPTH:
            raise UsageError(f"filter has more than {_MAX_DEPTH} nested parentheses")
        alternatives = [self._conjunction(depth)]
        while self._keyword("or"):
            alternatives.append(self._conjunction(depth))
        return alternatives[0] if len(alternatives) == 1 else AnyOf(tuple(alternatives))

    def _conjunction(self, depth: int) -> Condition:
        terms = [self._term(depth)]
        while self._keyword("and"):
            terms.append(self._term(depth))
        return terms[0] if len(terms) == 1 else AllOf(tuple(terms))

    def _term(self, depth: int) -> Condition:
        if self._skip("("):
            condition = self.expression(depth + 1)
            if not self._skip(")"):
                raise self.error()
            return condition
        return self._comparison(is_grouped=depth > 0)

    def _comparison(self, *, is_grouped: bool) -> Filter:
        found = _COMPARISON.match(self._text, self._at)
        if not found:
            raise self.error()
        self._at = found.end()
        column, operator = found.groups()
        if quoted := _QUOTED.match(self._text, self._at):
            self._at = quoted.end()
            return Filter(column, _OPERATOR_NAMES.get(operator, operator), _ESCAPED.sub(r"\1", quoted[0][1:-1]))
        value = self._plain_value(is_grouped=is_grouped)
        is_absent = not value and operator in ("=", "!=")
        return Filter(column, _OPERATOR_NAMES.get(operator, operator), None if is_absent else value)

    def _plain_value(self, *, is_grouped: bool) -> str:
        """Read the text up to a keyword, or up to the parenthesis that closes the group."""
        # The space before a keyword belongs to the keyword, also right after the operator.
        start = self._at - 1 if self._at and self._text[self._at - 1].isspace() else self._at
        keyword = _KEYWORD.search(self._text, start)
        end = keyword.start() if keyword else len(self._text)
        if is_grouped:
            end = min(end, self._closing_parenthesis(end))
        value, self._at = self._text[self._at : end], max(self._at, end)
        return value.strip()

    def _closing_parenthesis(self, end: int) -> int:
        depth = 0
        for at in range(self._at, end):
            depth += {"(": 1, ")": -1}.get(self._text[at], 0)
            if depth < 0:
                return at
        return end

    def _keyword(self, name: str) -> bool:
        # After a quoted value or a parenthesis, a keyword needs no space before it.
        found = re.compile(rf"\s*{name}(?=[\s(]|$)", re.IGNORECASE).match(self._text, self._at)
        if found:
            self._at = found.end()
        return found is not None

    def _skip(self, character: str) -> bool:
        found = re.compile(rf"\s*{re.escape(character)}").match(self._text, self._at)
        if found:
            self._at = found.end()
        return found is not None
