"""Samples of all metrics that Ray's charts use, and queries: those of the charts, and generated ones."""

import math
import random
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import promql_parser as nodes

from rayhistory.metrics.dashboard_library import built_in_dashboards
from rayhistory.metrics.samples import Samples
from rayhistory.metrics.template_variables import VariableChoice, interpolate
from rayhistory.metrics.time_ranges import TimeRange
from rayhistory.promql.syntax import children
from support.stored_metrics import START_MS, Columns, samples

STEP_MS = 15_000
COUNT = 120
NODES = {"a" * 56: "10.0.0.1", "b" * 56: "10.0.0.2"}
TIMES = TimeRange(START_MS + 600_000, START_MS + STEP_MS * COUNT, 60_000)
"""Steps lie on samples, so that windows begin at samples."""
_BOUNDS = ("0.1", "1", "10", "+Inf")
_VALUES = {
    "State": ("RUNNING", "FINISHED", "FAILED", "USED", "ALIVE", "DEAD"),
    "Name": ("CPU", "GPU", "memory", "object_store_memory"), "resource": ("CPU", "GPU", "memory"),
    "IsRetry": ("0", "1"),
    "Source": ("executor", "gcs"), "le": _BOUNDS,
    "RayNodeType": ("head", "worker"), "Location": ("SPILLED", "MMAP_SHM"), "ReplicaId": ("", "", "r1"),
}  # fmt: skip
_COUNTER = re.compile(r"_(total|sum|count|bucket)$")
_ADDED = {"instance", "SessionName", "ray_io_cluster", "job", "__name__"}


def chart_queries() -> list[str]:
    """Return the queries of all charts, with All for each variable."""
    found: dict[str, None] = {}
    for dashboard in built_in_dashboards().values():
        choices = {each.name: VariableChoice(each, (), ("$__all",) if each.include_all else each.current or ("5m",))
                   for each in dashboard.variables}  # fmt: skip
        choices = {
            name: VariableChoice(choice.variable, ("head", "worker"), choice.values) for name, choice in choices.items()
        }
        for row in dashboard.rows:
            for panel in row.panels:
                found |= {interpolate(target.expr, choices, TIMES): None for target in panel.targets}
    return list(found)


def _selectors(node: Any) -> Iterator[Any]:
    if isinstance(node, nodes.VectorSelector):
        yield node
    elif isinstance(node, nodes.MatrixSelector):
        yield node.vector_selector
    elif isinstance(node, nodes.SubqueryExpr):
        yield from _selectors(node.expr)
    else:
        for child in children(node):
            yield from _selectors(child)


def _names(selector: Any) -> list[str]:
    """Return the metric names of a selector, which may be alternatives in a regular expression."""
    if selector.name:
        return [selector.name]
    pattern = next(each.value for each in selector.matchers.matchers if each.name == "__name__")
    return re.findall(r"[a-z_]\w+", pattern)


def metrics() -> dict[str, set[str]]:
    """Return the metrics of all charts, with the labels that their queries mention."""
    found: dict[str, set[str]] = {}
    for query in chart_queries():
        grouped = {name.strip() for names in re.findall(r"by\s*\(([^)]*)\)", query) for name in names.split(",")}
        for selector in _selectors(nodes.parse(query)):
            matched = {each.name for each in selector.matchers.matchers}
            for name in _names(selector):
                found.setdefault(name, set()).update((matched | grouped) - _ADDED - {""})
    return found


class Differences(msgspec.Struct, frozen=True):
    """What the corpus leaves out, because the semantics of an older Prometheus differ from version 3."""

    is_version_2: bool = False

    @property
    def times(self) -> TimeRange:
        """Version 2 includes a sample at the start of a window, so that steps lie between samples."""
        return TimeRange(TIMES.start_ms + 7_000, TIMES.end_ms - 8_000, TIMES.step_ms) if self.is_version_2 else TIMES

    @property
    def first_value(self) -> float:
        """Version 2 extrapolates a counter near zero further."""
        return 1_000.0 if self.is_version_2 else 3.0

    @property
    def nested_subqueries(self) -> bool:
        """The windows of nested subqueries begin at inner steps, which version 2 includes."""
        return not self.is_version_2


def node_samples(node: str, address: str, differences: Differences) -> Samples:
    """Return samples of one node: counters with resets, gauges, series that begin late or end early."""
    generator = random.Random(f"{node}")
    columns: Columns = {}
    for name, labels in sorted(metrics().items()):
        names = sorted(labels - {"le"})
        for number in range(4):
            chosen = tuple((label, _label_value(node, label, number)) for label in names)
            for le in _BOUNDS if name.endswith("_bucket") else ("",):
                key = (name, (*filter(lambda pair: pair[1], chosen), *((("le", le),) if le else ()), ("ip", address)))
                if key not in columns:
                    columns[key] = _values(name, number, le, generator, differences.first_value)
    return samples(columns, START_MS, STEP_MS)


def _label_value(node: str, label: str, number: int) -> str:
    """Return the same value for all metrics, so that operators find pairs."""
    if label == "WorkerId":
        return f"worker-{node[0]}-{number}"
    return random.Random(f"{node} {label} {number}").choice(_VALUES.get(label, ("x", "y")))


def _values(name: str, number: int, le: str, generator: random.Random, first: float) -> list[float]:
    if _COUNTER.search(name):
        share = (_BOUNDS.index(le) + 1) / len(_BOUNDS) if le else 1.0
        value, values = first * share, []
        for step in range(COUNT):
            value = 0.0 if step == 70 and number == 1 else value + share * (step % 7 + number)
            values.append(value)
    else:
        values = [generator.randrange(400) / 4 for _ in range(COUNT)]  # sums are exact in any order
    if number == 2 and not le:
        values = [math.nan if step < 20 else value for step, value in enumerate(values)]
    if number == 3 and not le:
        values = [math.nan if step > 90 else value for step, value in enumerate(values)]
    return values


def generated_queries(count: int, differences: Differences, seed: int = 1) -> list[str]:
    nested = differences.nested_subqueries
    return [_Generator(random.Random(seed * 1_000_003 + number), nested).vector(3) for number in range(count)]


class _Generator:
    """Random queries that are valid, over a few metrics."""

    _GAUGES = ("ray_node_cpu_utilization", "ray_tasks", "ray_resources", "ray_actors")
    _COUNTERS = (
        "ray_node_manager_unexpected_worker_failure_total",
        "ray_memory_manager_worker_eviction_total",
        "ray_serve_num_http_requests_total",
    )
    _LABELS = ("instance", "State", "Name", "IsRetry")
    _GAUGE_FUNCTIONS = ("avg_over_time", "min_over_time", "max_over_time", "sum_over_time", "count_over_time", "delta",
                        "last_over_time", "stddev_over_time", "deriv", "changes", "quantile_over_time")  # fmt: skip
    _MATH = ("abs", "ceil", "floor", "sqrt", "exp", "ln", "sgn", "round")

    def __init__(self, generator: random.Random, nested: bool, *, subqueries: bool = True) -> None:
        self._random = generator
        self._nested = nested
        self._kinds = [self._aggregation, self._over_time, self._rate, self._binary, self._math, self._set]
        if subqueries:
            self._kinds.append(self._subquery)

    def vector(self, depth: int) -> str:
        if depth == 0:
            return self._selector(self._pick(self._GAUGES))
        made: str = self._pick(self._kinds)(depth)
        return made

    def _pick(self, options: Any) -> Any:
        return self._random.choice(options)

    def _selector(self, name: str) -> str:
        matchers = (
            "",
            '{instance=~"10.*"}',
            '{State!="DEAD"}',
            '{State=~"RUNNING|FAILED"}',
            '{instance!~".*2"}',
            '{State="FINISHED"}',
        )
        return f"{name}{self._pick(matchers)}{self._pick(('', '', ' offset 1m'))}"

    def _range(self, name: str) -> str:
        found = self._selector(name)
        base, _, offset = found.partition(" offset")
        return f"{base}[{self._pick(('1m', '2m', '5m', '10m'))}]" + (f" offset{offset}" if offset else "")

    def _aggregation(self, depth: int) -> str:
        operator = self._pick(
            ("sum", "avg", "min", "max", "count", "stddev", "stdvar", "group", "topk(2,", "quantile(0.7,")
        )
        clause = self._pick(
            ("", " by (instance)", " by (State, instance)", " without (instance)", " without (Name, ip)")
        )
        inner = self.vector(depth - 1)
        if operator.endswith(","):
            name, _, parameter = operator.partition("(")
            return f"{name}{clause}({parameter} {inner})" if clause else f"{name}({parameter} {inner})"
        return f"{operator}{clause}({inner})"

    def _over_time(self, depth: int) -> str:
        function = self._pick(self._GAUGE_FUNCTIONS)
        first = "0.4, " if function == "quantile_over_time" else ""
        return f"{function}({first}{self._range(self._pick(self._GAUGES))})"

    def _rate(self, depth: int) -> str:
        return f"{self._pick(('rate', 'increase', 'irate', 'resets'))}({self._range(self._pick(self._COUNTERS))})"

    def _binary(self, depth: int) -> str:
        operator = self._pick(("+", "-", "*", "/", ">", "<=", "== bool", "> bool"))
        inner = self.vector(depth - 1)
        if self._random.random() < 0.5:
            return f"({inner}) {operator} {self._pick(('2', '0.5', '100'))}"
        return f"sum by (instance) ({inner}) {operator} on (instance) sum by (instance) ({self.vector(depth - 1)})"

    def _set(self, depth: int) -> str:
        return (
            f"({self.vector(depth - 1)}) {self._pick(('and', 'or', 'unless'))} on (instance) ({self.vector(depth - 1)})"
        )

    def _math(self, depth: int) -> str:
        return f"{self._pick(self._MATH)}({self.vector(depth - 1)})"

    def _subquery(self, depth: int) -> str:
        function = self._pick(("max_over_time", "avg_over_time", "min_over_time", "sum_over_time"))
        return (
            f"{function}(({_Generator(self._random, self._nested, subqueries=self._nested).vector(depth - 1)})[5m:1m])"
        )
