"""The second argument of `info()`: a selector of info series, which may also match every series."""

import re
from typing import Any

import msgspec

from rayhistory.promql.labels import METRIC_NAME
from rayhistory.promql.matchers import Matcher, each_matcher

_DEFAULT_NAME = (Matcher(METRIC_NAME, "=", "target_info"),)
_ANY_NAME = (Matcher(METRIC_NAME, "=~", ".+_info"),)
_ADDED_LABEL = "__info_selector__"
"""A label that no series has. Selectors get a matcher of it, because the parser rejects those that match everything."""
_CALL = re.compile(r"\binfo\s*\(", re.IGNORECASE)


def with_accepted_selectors(query: str, code: str) -> str:
    """Add a matcher to the selectors of `info()`, so that the parser accepts them.

    `code` is the query with masked strings.
    """
    positions = [position for call in _CALL.finditer(code) if (position := _second_argument(code, call.end()))]
    for position in sorted(positions, reverse=True):
        query = f'{query[:position]}{_ADDED_LABEL}!="",{query[position:]}'
    return query


def _second_argument(code: str, start: int) -> int | None:
    """Return the position behind the opening brace of a call's second argument."""
    depth = 0
    for position in range(start, len(code)):
        character = code[position]
        if depth == 0 and character in ",)":
            rest = code[position + 1 :].lstrip()
            is_selector = character == "," and rest.startswith("{")
            return len(code) - len(rest) + 1 if is_selector else None
        depth += (character in "([{") - (character in ")]}")
    return None


class InfoSelector(msgspec.Struct, frozen=True):
    """The second argument of `info()`: which info metrics are read, and which of their labels are added."""

    names: tuple[Matcher, ...]
    data: tuple[Matcher, ...]

    @classmethod
    def of(cls, arguments: list[Any]) -> "InfoSelector":
        matchers = each_matcher(arguments[1]) if len(arguments) > 1 else ()
        names = tuple(matcher for matcher in matchers if matcher.name == METRIC_NAME)
        data = tuple(m for m in matchers if m.name not in (METRIC_NAME, _ADDED_LABEL))
        if not names:
            names = _DEFAULT_NAME
        elif all(matcher.operator in ("!=", "!~") for matcher in names):
            names = _ANY_NAME + names
        return cls(names, data)

    @property
    def matchers(self) -> tuple[Matcher, ...]:
        return self.names + self.data

    def has_name(self, name: str) -> bool:
        return all(matcher.predicate()(name) for matcher in self.names)

    def adds(self, label: str) -> bool:
        return label != METRIC_NAME and (not self.data or any(matcher.name == label for matcher in self.data))

    @property
    def is_required(self) -> bool:
        """True if a series without any info series is left out."""
        return not all(matcher.predicate()("") for matcher in self.data)
