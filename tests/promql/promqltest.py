"""Run test scripts of Prometheus' own engine: `python -m promql.promqltest DIRECTORY_OR_FILES…`.

A script loads series and evaluates queries with expected results. Native histograms are not supported: a case needs
them if it reads a sample that is one, or expects one. Such cases are counted apart.
Prints the cases that fail, a line per file and the totals.
"""

import argparse
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import promql_parser

from rayhistory.promql.arrays import Times
from rayhistory.promql.engine import evaluate, samples_at
from rayhistory.promql.labels import Labels, labels_of
from rayhistory.promql.matchers import Matcher
from rayhistory.promql.query_errors import NotSupported, PromqlError
from rayhistory.promql.values import RangeVector, Scalar, SeriesSet, Text, Vector

_EVAL = re.compile(
    r"eval(?P<expects>(?:_\w+)?)\s+(?:instant\s+at\s+(?P<at>\S+)|"
    r"range\s+from\s+(?P<start>\S+)\s+to\s+(?P<end>\S+)\s+step\s+(?P<step>\S+))\s+(?P<query>.+)"
)
_NUMBER = r"(?:[.\d]+(?:[eE][-+]?\d+)?|NaN|[iI]nf)"
_VALUES = re.compile(rf"(?P<start>[-+]?{_NUMBER})(?:(?P<sign>[-+])(?P<delta>{_NUMBER}))?(?:x(?P<count>\d+))?$")
_NATIVE = re.compile(r"\{\{[^}]*\}\}(?:[-+]\{\{[^}]*\}\})?(?:x(?P<count>\d+))?")
NATIVE = "native"
"""Stands for a native histogram in a list of samples."""
_RELATIVE_ERROR = 1e-6
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000, "y": 31_536_000_000}


class Unsupported(Exception):
    """The case needs a function or a directive that the engine or this runner does not know."""


class NativeHistograms(Unsupported):
    """The case needs native histograms."""


class MemorySource:
    """Series in memory; each is a series_set of its own."""

    def __init__(self) -> None:
        self.series_sets: list[SeriesSet] = []
        self.native: list[tuple[Labels, list[int]]] = []
        """Series that have native histograms, and the times of these."""
        self.started: list[Labels] = []
        """Series whose samples have start timestamps, which only Prometheus' own storage has."""

    def select(self, matchers: tuple[Matcher, ...], start_ms: int, end_ms: int) -> list[SeriesSet]:
        predicates = [(matcher.name, matcher.predicate()) for matcher in matchers]

        def matches(labels: Labels) -> bool:
            values = dict(labels)
            return all(predicate(values.get(name, "")) for name, predicate in predicates)

        if any(map(matches, self.started)):
            raise Unsupported("start timestamps")
        for labels, times in self.native:
            if matches(labels) and any(start_ms <= at <= end_ms for at in times):
                raise NativeHistograms("native histograms")
        return [series_set for series_set in self.series_sets if matches(series_set.labels[0])]


class Case(msgspec.Struct):
    line: int
    match: re.Match[str]
    results: list[str] = []
    expects: list[str] = []


def duration_ms(text: str) -> int:
    if re.fullmatch(r"-?[\d.]+", text):
        return round(float(text) * 1000)
    sign = -1 if text.startswith("-") else 1
    parts = re.findall(r"(\d+)(ms|[smhdwy])", text)
    return sign * sum(int(number) * _UNIT_MS[unit] for number, unit in parts)


def parse_series(text: str) -> tuple[Labels, str]:
    """Split a line into labels and values."""
    depth, in_string = 0, ""
    for position, character in enumerate(text):
        if in_string:
            in_string = "" if character == in_string and text[position - 1] != "\\" else in_string
        elif character in "\"'`":
            in_string = character
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
        elif character.isspace() and depth == 0:
            return parse_labels(text[:position]), text[position:].strip()
    return parse_labels(text), ""


def parse_labels(text: str) -> Labels:
    if text == "{}":
        return ()
    selector: Any = promql_parser.parse(text)
    pairs = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
    if selector.name:
        pairs["__name__"] = selector.name
    return labels_of(pairs)


def parse_value(text: str) -> float:
    return float(text.replace("Inf", "inf"))


def expand(text: str) -> list[float | str | None]:
    """Expand Prometheus' notation of sequences: `1+2x3` is 1 3 5 7, `_` is a missing sample."""
    values: list[float | str | None] = []
    for item in _NATIVE.sub(_natives, text).split():
        if item.startswith("_"):
            values += [None] * int(item[2:] or 1)
            continue
        if item in ("stale", NATIVE):
            values.append(item)
            continue
        found = _VALUES.match(item)
        try:
            values.append(parse_value(item))
            continue
        except ValueError:
            if not found or not found["count"]:
                raise Unsupported(f"value {item}") from None
        start = parse_value(found["start"])
        delta = parse_value(found["delta"] or "0") * (-1 if found["sign"] == "-" else 1)
        values += [start + delta * number for number in range(int(found["count"]) + 1)]
    return values


def _natives(notation: re.Match[str]) -> str:
    """Return one word for each native histogram that the notation stands for."""
    return " ".join([NATIVE] * (int(notation["count"]) + 1 if notation["count"] else 1))


class Script:
    def __init__(self, path: Path) -> None:
        self._lines = path.read_text().splitlines()
        self._source = MemorySource()

    def cases(self) -> Iterator[tuple[Case, MemorySource]]:
        number = 0
        while number < len(self._lines):
            line = self._lines[number].strip()
            series_set = self._block(number + 1)
            if line == "clear":
                self._source = MemorySource()
            elif line.startswith("load"):
                self._load(line, series_set)
                number += len(series_set)
            elif line.startswith("eval"):
                match = _EVAL.match(line.replace("eval_", "eval "))
                lines = [text for text in (text.strip() for text in series_set) if text and not text.startswith("#")]
                if match:
                    case = Case(number + 1, match)
                    for text in lines:
                        (case.expects if text.startswith("expect ") else case.results).append(text)
                    yield case, self._source
                else:
                    yield self._old_style(number + 1, line, lines), self._source
                number += len(series_set)
            number += 1

    def _old_style(self, number: int, line: str, lines: list[str]) -> Case:
        found = re.match(r"eval[_ ](fail|warn|info|ordered)\s+(.*)", line)
        match = _EVAL.match(f"eval {found[2]}") if found else None
        if not found or not match:
            raise ValueError(f"line {number}: {line}")
        return Case(number, match, lines, [f"expect {found[1]}"])

    def _block(self, start: int) -> list[str]:
        end = start
        while end < len(self._lines) and (self._lines[end][:1].isspace() or self._lines[end].strip().startswith("#")):
            end += 1
        return self._lines[start:end]

    def _load(self, line: str, series_set: list[str]) -> None:
        interval = duration_ms(line.split()[1])
        for text in filter(None, map(str.strip, series_set)):
            if text.startswith("#"):
                continue
            series, marker, values = text.partition("@st ")
            if marker:
                self._source.started.append(parse_labels(series))
                continue
            labels, values = parse_series(text)
            samples = expand(values)
            native = [number * interval for number, value in enumerate(samples) if value == NATIVE]
            if native:
                self._source.native.append((labels, native))
            samples = [None if value == NATIVE else value for value in samples]
            if line.startswith("load_with_nhcb") and dict(labels).get("__name__", "").endswith("_bucket"):
                times_ms = [number * interval for number, value in enumerate(samples) if value is not None]
                self._source.native.append((_native_labels(labels), times_ms))
            kept = [number for number, value in enumerate(samples) if value is not None]
            times = np.array([number * interval for number in kept], dtype=np.int64)
            numbers = np.array([[0.0 if samples[k] == "stale" else samples[k] for k in kept]], dtype=float)
            present = np.array([[samples[k] != "stale" for k in kept]], dtype=bool)
            self._source.series_sets.append(SeriesSet(times, [labels], numbers.reshape(1, -1), present.reshape(1, -1)))


def _native_labels(labels: Labels) -> Labels:
    """Return the labels of the native histogram that a classic bucket is converted to."""
    pairs = dict(labels)
    pairs["__name__"] = pairs.get("__name__", "").removesuffix("_bucket")
    return labels_of({name: value for name, value in pairs.items() if name != "le"})


def run(case: Case, source: MemorySource) -> None:
    """Raise AssertionError if the result differs from what the case expects."""
    match, query = case.match, case.match["query"]
    if any("{{" in text for text in case.results):
        raise NativeHistograms("native histograms")
    expects = {text.split()[1]: text.split(maxsplit=2)[2] if len(text.split()) > 2 else "" for text in case.expects}
    if match["at"]:
        times = np.array([duration_ms(match["at"])], dtype=np.int64)
    else:
        start, end, step = (duration_ms(match[name]) for name in ("start", "end", "step"))
        times = np.arange(start, end + 1, step, dtype=np.int64)
    try:
        result = evaluate(query, times, source)
    except NotSupported as error:
        read_all(query, times, source)
        raise Unsupported(str(error)) from None
    except PromqlError as error:
        assert "fail" in expects, f"failed: {error}"
        check_message(expects["fail"], str(error))
        return
    assert "fail" not in expects, "did not fail"
    assert "warn" not in expects or result.warnings, "no warning"
    assert "no_warn" not in expects or not result.warnings, result.warnings
    assert "info" not in expects or result.infos, "no info"
    assert "no_info" not in expects or not result.infos, result.infos
    if "string" in expects:
        assert isinstance(result.value, Text)
        literal = promql_parser.parse(expects["string"])
        assert isinstance(literal, promql_parser.StringLiteral)
        assert result.value.value == literal.val
        return
    expected = case.results
    if isinstance(result.value, Scalar):
        assert len(expected) == 1, expected
        compare([result.value.values], [numbers_of(expected[0].removeprefix("{}"))])
    elif isinstance(result.value, RangeVector):
        compare_ranges(result.value, expected, expects["range"])
    elif isinstance(result.value, Vector):
        compare_vectors(result.value, [parse_series(text) for text in expected], ordered="ordered" in expects)


def read_all(query: str, times: Times, source: MemorySource) -> None:
    """Raise NativeHistograms if a query that is not supported would read one."""
    try:
        selections = samples_at(query, times)
    except NotSupported:  # cannot be parsed
        if re.search(r"</|>/", query):  # operators that only native histograms have
            raise NativeHistograms("native histograms") from None
        return
    for needed in selections:
        source.select(needed.matchers, needed.start_ms, needed.end_ms)


def numbers_of(text: str) -> list[float | None]:
    return [value if not isinstance(value, str) else None for value in expand(text)]


def check_message(expected: str, message: str) -> None:
    if expected.startswith("msg:"):
        assert expected[4:].strip() in message, f"{message!r} is not {expected!r}"
    elif expected.startswith("regex:"):
        assert re.search(expected[6:].strip(), message), f"{message!r} is not {expected!r}"


def compare_vectors(vector: Vector, expected: list[tuple[Labels, str]], *, ordered: bool) -> None:
    found = {labels: (vector.values[row], vector.present[row]) for row, labels in enumerate(vector.labels)}
    assert set(found) == {labels for labels, _ in expected}, f"labels {sorted(found)}"
    if ordered:
        assert vector.labels == [labels for labels, _ in expected], f"order {vector.labels}"
    for labels, text in expected:
        values, present = found[labels]
        compare([[float(v) if p else None for v, p in zip(values, present, strict=True)]], [numbers_of(text)])


def compare_ranges(found: RangeVector, expected: list[str], text: str) -> None:
    """Compare the samples of a range vector with `vector from START to END step STEP`, and values at these times."""
    _, _, start, _, end, _, step = text.split()
    times = range(duration_ms(start), duration_ms(end) + 1, duration_ms(step))
    rows = {labels: dict(zip(at.tolist(), values.tolist(), strict=True)) for labels, at, values in found.rows}
    wanted = dict(map(parse_series, expected))
    assert rows.keys() == wanted.keys(), f"labels {sorted(rows)}"
    for labels, values in wanted.items():
        numbers = numbers_of(values)
        assert rows[labels].keys() <= set(times), sorted(rows[labels])
        compare([[rows[labels].get(at) for at in times]], [numbers])


def compare(found: Any, expected: Any) -> None:
    for found_row, expected_row in zip(found, expected, strict=True):
        row = list(found_row)
        wanted = list(expected_row) + [None] * (len(row) - len(expected_row))
        assert len(row) == len(wanted), f"{row} is not {wanted}"
        for one, two in zip(row, wanted, strict=True):
            assert is_close(one, two), f"{row} is not {wanted}"


def is_close(one: float | None, two: float | None) -> bool:
    if one is None or two is None:
        return one is two
    if math.isnan(one) or math.isnan(two):
        return math.isnan(one) and math.isnan(two)
    if math.isinf(one) or math.isinf(two):
        return one == two
    return math.isclose(one, two, rel_tol=_RELATIVE_ERROR, abs_tol=1e-12)


def run_file(path: Path, verbose: bool) -> Counter[str]:
    counts: Counter[str] = Counter()
    for case, source in Script(path).cases():
        try:
            run(case, source)
            counts["passed"] += 1
        except Unsupported as reason:
            counts["native" if isinstance(reason, NativeHistograms) else "unsupported"] += 1
            if verbose:
                print(f"unsupported {path.name}:{case.line}: {case.match['query']} ({reason})")
        except AssertionError as error:
            counts["failed"] += 1
            print(f"FAILED {path.name}:{case.line}: {case.match['query']}\n    {str(error)[:300]}")
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="+", type=Path)
    parser.add_argument("--verbose", action="store_true", help="name unsupported cases too")
    options = parser.parse_args()
    files = [file for path in options.scripts for file in (sorted(path.glob("*.test")) if path.is_dir() else [path])]
    totals: Counter[str] = Counter()
    for file in files:
        counts = run_file(file, options.verbose)
        totals += counts
        print(f"{file.name}: {described(counts)}")
    without_native = totals["passed"] + totals["failed"] + totals["unsupported"]
    share = 100 * totals["passed"] / max(1, without_native)
    print(f"without native histograms: {totals['passed']} of {without_native} passed ({share:.1f} %)")
    print(
        f"{totals['passed']} passed, {totals['failed']} failed, {totals['native'] + totals['unsupported']} unsupported"
    )
    return 1 if totals["failed"] else 0


def described(counts: Counter[str]) -> str:
    return (
        f"{counts['passed']} passed, {counts['failed']} failed, {counts['unsupported']} unsupported, "
        f"{counts['native']} need native histograms"
    )


if __name__ == "__main__":
    sys.exit(main())
