"""Variables of a Grafana dashboard: their options from stored series, and their values inside queries."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import msgspec
import re2

from rayhistory.metrics.dashboard_model import Variable
from rayhistory.metrics.time_ranges import TimeRange, format_duration
from rayhistory.promql.engine import named_metrics

ALL = "$__all"
MAX_OPTIONS = 1_000
_MAX_VALUE = 1_024
_REFERENCE = re.compile(r"\$(\w+)|\$\{(\w+)(?:\.[\w.]+)?(?::(\w+))?\}|\[\[(\w+)(?::(\w+))?\]\]", re.ASCII)
_LABEL_VALUES = re.compile(r"label_values\((?:(.*),)?\s*+(\w++)\s*+\)", re.DOTALL)
_QUERY_RESULT = re.compile(r"query_result\((.*)\)", re.DOTALL)
_REGEX_SPECIAL = re.compile(r"[$^*{}\[\]'+?.()|\\/-]")

Labels = tuple[tuple[str, str], ...]


class SeriesQueries(Protocol):
    """The queries of variables: labels of stored series, and results of instant queries."""

    def label_values(self, selector: str, label: str) -> list[str]: ...

    def query_result(self, query: str) -> list[tuple[Labels, float]]: ...


class VariableChoice(msgspec.Struct, frozen=True):
    """A variable with its options and the chosen values. `$__all` means all options."""

    variable: Variable
    options: tuple[str, ...]
    values: tuple[str, ...]

    def in_query(self) -> str:
        """Return the text that replaces the variable in a query."""
        if ALL in self.values:
            return self.variable.all_value or _alternatives(self.options)
        if not (self.variable.multi or self.variable.include_all):
            return _in_string(self.values[0]) if self.values else ""
        return _alternatives(self.values)

    def in_text(self) -> str:
        return "All" if ALL in self.values else " + ".join(self.values)


def resolve_variables(
    variables: Iterable[Variable], requested: Mapping[str, list[str]], source: SeriesQueries, times: TimeRange
) -> dict[str, VariableChoice]:
    """Choose values: the requested ones, else All, else the variable's default, else the first option."""
    choices: dict[str, VariableChoice] = {}
    for variable in variables:
        options = tuple(_options(variable, choices, source, times))[:MAX_OPTIONS]
        values = _requested_values(variable, requested) or _default_values(variable, options)
        choices[variable.name] = VariableChoice(variable, options, values)
    return choices


def known_choices(variables: Iterable[Variable], requested: Mapping[str, list[str]]) -> dict[str, VariableChoice]:
    """Return the variables that need no options: those with requested values, and those with a fixed value for All."""
    choices: dict[str, VariableChoice] = {}
    for variable in variables:
        values = _requested_values(variable, requested) or ((ALL,) if variable.include_all else ())
        if values and (ALL not in values or variable.all_value):
            choices[variable.name] = VariableChoice(variable, (), values)
    return choices


def referenced(text: str) -> set[str]:
    """Return the names of all variables in a query."""
    return {found[1] or found[2] or found[4] for found in _REFERENCE.finditer(text)}


def _requested_values(variable: Variable, requested: Mapping[str, list[str]]) -> tuple[str, ...]:
    wanted = [value[:_MAX_VALUE] for value in requested.get(variable.name, ()) if value][:MAX_OPTIONS]
    return tuple(ALL if value == "All" and variable.include_all else value for value in wanted)


def _default_values(variable: Variable, options: tuple[str, ...]) -> tuple[str, ...]:
    if variable.include_all:
        return (ALL,)
    if variable.current and set(variable.current) <= {*options, *variable.current[: not options]}:
        return variable.current
    return options[:1]


def _options(
    variable: Variable, choices: Mapping[str, VariableChoice], source: SeriesQueries, times: TimeRange
) -> Iterator[str]:
    if variable.kind in ("custom", "interval"):
        listed = [each.strip() for each in variable.query.split(",") if each.strip()]
        yield from listed or variable.current
    elif variable.kind in ("constant", "textbox"):
        yield from filter(None, [variable.query or next(iter(variable.current), "")])
    elif variable.kind == "query":
        found = _query_options(interpolate(variable.query, choices, times), source)
        yield from sorted(dict.fromkeys(_matching(found, variable.regex)))


def _query_options(query: str, source: SeriesQueries) -> list[str]:
    if match := _LABEL_VALUES.fullmatch(query.strip()):
        return source.label_values((match[1] or "").strip(), match[2])
    if match := _QUERY_RESULT.fullmatch(query.strip()):
        return [_result_text(labels, value) for labels, value in source.query_result(match[1])]
    return []


def variable_metrics(variables: Iterable[Variable], times: TimeRange) -> list[str] | None:
    """Return the metrics that queries of variables read; None if a query does not name its metric."""
    names: set[str] = set()
    for variable in variables:
        found = named_metrics(_selector_text(variable, times)) if variable.kind == "query" else []
        if found is None:
            return None
        names.update(found)
    return sorted(names)


def _selector_text(variable: Variable, times: TimeRange) -> str:
    query = _REFERENCE.sub("x", interpolate(variable.query, {}, times)).strip()  # values of other variables
    match = _LABEL_VALUES.fullmatch(query) or _QUERY_RESULT.fullmatch(query)
    return (match[1] or "").strip() if match else ""


def _result_text(labels: Labels, value: float) -> str:
    """Return a series as text for a variable's regular expression, as Grafana does."""
    name = dict(labels).get("__name__", "")
    inside = ",".join(f'{label}="{text}"' for label, text in labels if label != "__name__")
    return f"{name}{{{inside}}} {value:g} 0"


def _matching(texts: list[str], regex: str) -> Iterator[str]:
    """Yield the part of each text that a variable's regular expression selects, and leave out texts without a match.

    The part is the group `value`, else the group `text`, else the first group, else the whole match.
    """
    pattern = _compile(regex)
    if pattern is None:
        yield from texts
        return
    for text in texts:
        found = pattern.search(text)
        if found is None:
            continue
        groups = found.groupdict()
        value = groups.get("value") or groups.get("text") or next(iter(found.groups()), None) or found.group(0)
        if value:
            yield value


def _compile(regex: str) -> "re.Pattern[str] | None":
    if not regex:
        return None
    text = regex[1:].rpartition("/")[0] if regex.startswith("/") and regex.count("/") > 1 else regex
    options = re2.Options()
    options.log_errors = False
    try:
        compiled: re.Pattern[str] = re2.compile(text.replace("(?<", "(?P<"), options)
    except re2.error:
        return None
    return compiled


def interpolate(query: str, choices: Mapping[str, VariableChoice], times: TimeRange) -> str:
    """Replace variables in a query. Unknown ones stay, so that the error message names them."""
    built_in = _built_in(times)

    def replace(found: re.Match[str]) -> str:
        name = found[1] or found[2] or found[4]
        if name in built_in:
            return built_in[name]
        choice = choices.get(name)
        if choice is None:
            return found[0]
        return choice.in_text() if (found[3] or found[5]) in ("raw", "text") else choice.in_query()

    return _REFERENCE.sub(replace, query)


def _built_in(times: TimeRange) -> dict[str, str]:
    range_ms = max(1000, times.end_ms - times.start_ms)
    return {
        "__range": format_duration(range_ms), "__range_ms": str(range_ms), "__range_s": str(range_ms // 1000),
        "__interval": format_duration(times.step_ms), "__interval_ms": str(times.step_ms),
        "__rate_interval": format_duration(times.rate_interval_ms), "__rate_interval_ms": str(times.rate_interval_ms),
        "__from": str(times.start_ms), "__to": str(times.end_ms),
    }  # fmt: skip


def interpolate_text(text: str, choices: Mapping[str, VariableChoice]) -> str:
    """Replace variables in a title."""

    def replace(found: re.Match[str]) -> str:
        choice = choices.get(found[1] or found[2] or found[4])
        return choice.in_text() if choice else found[0]

    return _REFERENCE.sub(replace, text)


def _alternatives(values: Iterable[str]) -> str:
    """Return a regular expression, inside of a PromQL string, that matches exactly these values."""
    escaped = [_in_string(_REGEX_SPECIAL.sub(r"\\\g<0>", value)) for value in values]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


def _in_string(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
