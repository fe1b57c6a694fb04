"""Texts that a visitor or a job chooses, for which a regular expression would take quadratic time: hours for these."""

import pytest

from rayhistory.collector.dashboard.response_record import dashboard_response_record
from rayhistory.errors import UsageError
from rayhistory.index.query.query import AllOf, Filter
from rayhistory.index.query.where import parse_where
from rayhistory.metrics.template_variables import _query_options
from rayhistory.promql.syntax import max_depth
from rayhistory.search.pattern import SearchPattern
from rayhistory.search.pattern_syntax import MAX_PATTERN_BYTES

LENGTH = 300_000


def test_spaces_in_a_filter() -> None:
    """One request with 16,000 spaces stopped the server for 23 s."""
    assert parse_where(f"name=x{' ' * LENGTH}y") == Filter("name", "=", f"x{' ' * LENGTH}y")
    both = AllOf((Filter("name", "=", None), Filter("state", "=", "FAILED")))
    assert parse_where(f"name={' ' * LENGTH}and state=FAILED") == both
    with pytest.raises(UsageError):
        parse_where(f"name=x{' ' * LENGTH}and")


@pytest.mark.parametrize("text", ['\\"', "\\'", '"a\\', "`"])
def test_quotations_in_promql(text: str) -> None:
    assert max_depth('"' + text * LENGTH) <= max_depth("1") + LENGTH


@pytest.mark.parametrize("text", ["[", "[^", "[\\a", "[[:a", "\\x{", "\\p{"])
def test_brackets_in_a_search(text: str) -> None:
    """One search for 15,000 opening brackets stopped the server for 25 s, and one for 60,000 for minutes."""
    with pytest.raises(UsageError):
        SearchPattern((text * LENGTH)[:MAX_PATTERN_BYTES], regex=True)


def test_pattern_that_needs_a_large_program_is_refused() -> None:
    """A few such searches stopped the server for seconds, and each took 40 MB of memory while it ran."""
    with pytest.raises(UsageError, match="too large"):
        SearchPattern(r"[\p{L}\p{N}]{900}", regex=True)


def test_empty_arguments_of_a_process() -> None:
    """A job chooses its command line, which the dashboard lists: 8,000 empty arguments took the collector 9 s."""
    body = b'{"cmdline": ["x"' + b', ""' * LENGTH + b', "y"], "ended": ["x"' + b', ""' * 20 + b"]}"
    record = dashboard_response_record("session", None, "/nodes", body)
    assert record.count(b'""') >= LENGTH
    assert b'"ended": ["x"]' in record


def test_spaces_in_a_variable_of_a_dashboard() -> None:
    class NoSeries:
        def label_values(self, selector: str, label: str) -> list[str]:
            return [selector, label]

        def query_result(self, query: str) -> list[tuple[tuple[tuple[str, str], ...], float]]:
            return []

    assert _query_options(f"label_values({' ' * LENGTH}!", NoSeries()) == []
    assert _query_options('  label_values( ray_tasks{a="b"} , State ) ', NoSeries()) == ['ray_tasks{a="b"}', "State"]
