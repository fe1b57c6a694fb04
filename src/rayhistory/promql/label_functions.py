"""Functions that change labels, or sort series by them."""

import re
from collections.abc import Sequence

import re2

from rayhistory.promql.labels import Labels, labels_of
from rayhistory.promql.matchers import compile_pattern
from rayhistory.promql.query_errors import EvaluationFailed
from rayhistory.promql.values import Vector, unique_rows

_LABEL_NAME = re.compile(r"[^\x00]+", re.DOTALL)
_GROUP_REFERENCE = re.compile(r"\$(?:(\$)|(\d+)|\{(\w+)\}|(\w+))")


def label_replace(vector: Vector, target: str, replacement: str, source: str, pattern: str) -> Vector:
    """Set a label from the groups of a regular expression that matches another label's whole value."""
    compiled = compile_pattern(pattern)
    if compiled is None:
        raise EvaluationFailed(f"invalid regular expression in label_replace(): {pattern}")
    _check_name(target, "label_replace")

    def replaced(labels: Labels) -> Labels:
        values = dict(labels)
        if found := compiled.search(values.get(source, "")):
            values[target] = _expand(replacement, found)
        return labels_of(values)

    return unique_rows(Vector([replaced(labels) for labels in vector.labels], vector.values, vector.present))


def _expand(template: str, found: "re.Match[str]") -> str:
    """Expand $1, ${1}, $name and $$, as Go does: an unknown group is empty."""

    def group(reference: "re.Match[str]") -> str:
        dollar, number, braced, name = reference.groups()
        if dollar:
            return "$"
        key = number or braced or name
        try:
            return found.group(int(key) if key.isdecimal() else key) or ""
        except (IndexError, KeyError, re2.error):
            return ""

    return _GROUP_REFERENCE.sub(group, template)


def label_join(vector: Vector, target: str, separator: str, sources: Sequence[str]) -> Vector:
    """Set a label to the values of other labels, joined."""
    _check_name(target, "label_join")

    def joined(labels: Labels) -> Labels:
        values = dict(labels)
        values[target] = separator.join(values.get(name, "") for name in sources)
        return labels_of(values)

    return unique_rows(Vector([joined(labels) for labels in vector.labels], vector.values, vector.present))


def _check_name(name: str, function: str) -> None:
    if not _LABEL_NAME.fullmatch(name):
        raise EvaluationFailed(f"invalid destination label name in {function}(): {name}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise EvaluationFailed(f"invalid destination label name in {function}(): {name!r}") from None


def sorted_by_labels(vector: Vector, names: Sequence[str], *, descending: bool) -> Vector:
    """Sort rows by label values in natural order, in which numbers inside of texts are compared as numbers."""

    def key(row: int) -> tuple[object, ...]:
        values = dict(vector.labels[row])
        chosen = tuple(_natural(values.get(name, "")) for name in names)
        return (*chosen, vector.labels[row])

    return vector.rows(sorted(range(len(vector.labels)), key=key, reverse=descending))


def _natural(text: str) -> list[tuple[int, int, str]]:
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part]
