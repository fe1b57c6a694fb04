"""Comparisons tell what differs, and what chance explains."""

import msgspec

from rayhistory.index.query.run_figures import FunctionFigures
from rayhistory.runs.comparison import compare_sessions, is_beyond_spread
from rayhistory.runs.session_summary import NodeType, SessionDetails, StoredSummary, SummaryMetric
from support.generated_runs import generated


def function(name: str = "load", **values: object) -> FunctionFigures:
    return FunctionFigures(**({"name": name, "count": 100, "p50_ms": 100.0, "p95_ms": 120.0} | values))  # type: ignore[arg-type]


def session(number: int = 0, *, details: SessionDetails | None = None, **values: object) -> StoredSummary:
    stored = generated(number, **values)  # type: ignore[arg-type]
    return msgspec.structs.replace(stored, details=details or stored.details)


def with_functions(number: int, *functions: FunctionFigures) -> StoredSummary:
    return session(number, details=SessionDetails(functions=list(functions)))


def test_equal_sessions_have_no_differences() -> None:
    found = compare_sessions([session(0), session(1)])
    assert not [row for row in found.environment if row.differs]
    assert not [row for row in found.functions if row.differs]
    assert len(found.functions) == 8


def test_environment_lists_versions_packages_variables_and_nodes() -> None:
    before = SessionDetails(
        packages=["torch==2.8", "numpy"],
        env_vars=["A"],
        node_types=[NodeType(name="m5", count=2, resources={"CPU": 4.0})],
    )
    after = SessionDetails(
        packages=["torch==2.9", "numpy"],
        env_vars=["B"],
        node_types=[NodeType(name="m5", count=3, resources={"CPU": 4.0})],
    )
    found = compare_sessions([session(0, details=before), session(1, details=after, ray_version="2.61.0")])
    differing = {row.name: row.values for row in found.environment if row.differs}
    assert differing == {
        "Ray": ["2.60.0", "2.61.0"],
        "CPUs": ["8", "12"],
        "package torch": ["2.8", "2.9"],
        "variable A": ["set", None],
        "variable B": [None, "set"],
        "nodes m5 (4 CPU)": ["2", "3"],
    }
    assert [row.values for row in found.environment if row.name == "package numpy"] == [["any", "any"]]


def test_function_that_got_slower_beyond_the_spread_differs() -> None:
    found = compare_sessions([with_functions(0, function()), with_functions(1, function(p50_ms=150.0, p95_ms=170.0))])
    (row,) = found.functions
    assert row.differs
    assert (row.sessions[1].ratio, row.sessions[1].beyond_spread) == (1.5, True)


def test_few_noisy_tasks_do_not_differ() -> None:
    noisy, slower = function(count=4, p95_ms=400.0), function(count=4, p50_ms=150.0, p95_ms=450.0)
    assert not is_beyond_spread(noisy, slower)
    assert is_beyond_spread(function(count=4000, p95_ms=400.0), function(count=4000, p50_ms=150.0, p95_ms=450.0))
    assert not is_beyond_spread(function(), function(p50_ms=110.0))
    assert not is_beyond_spread(function(), function(p50_ms=None))


def test_function_that_only_one_session_has_is_zero_in_the_other() -> None:
    found = compare_sessions([with_functions(0, function("old")), with_functions(1, function("new"))])
    assert {row.name: [each.count for each in row.sessions] for row in found.functions} == {
        "old": [100, 0],
        "new": [0, 100],
    }
    assert all(row.differs for row in found.functions)


def test_new_and_gone_fingerprints() -> None:
    first, second = session(0, status="FAILED", fingerprint="aa"), session(1, status="FAILED", fingerprint="bb")
    found = {row.fingerprint: row for row in compare_sessions([first, second]).fingerprints}
    assert (found["bb"].new, found["bb"].gone, found["bb"].sessions) == (True, False, [False, True])
    assert (found["aa"].new, found["aa"].gone) == (False, True)


def test_metrics_of_sessions_are_side_by_side() -> None:
    cpu = SummaryMetric(name="cpu_percent", step_ms=1000, values=[1.0, None, 3.0])
    found = compare_sessions([session(0, details=SessionDetails(metrics=[cpu])), session(1)])
    assert [(row.name, row.sessions) for row in found.metrics] == [("cpu_percent", [cpu, None])]


def test_up_to_ten_sessions_are_compared() -> None:
    found = compare_sessions([session(number) for number in range(10)])
    assert all(len(row.sessions) == 10 for row in found.functions)
    assert [each.session.split("/")[1] for each in found.sessions] == [f"nightly-{number:05d}" for number in range(10)]
