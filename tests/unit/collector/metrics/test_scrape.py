"""Scrapes parse every form of the Prometheus text format, and report incomplete responses."""

import asyncio
import gzip
import math
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayhistory.collector.metrics.scrape import Scrape, ScrapeError, parse_series, scrape
from rayhistory.metrics.samples import MAX_SERIES
from rayhistory.settings import Settings
from support.metrics_endpoint import http_response, serve_responses
from support.paths import DATA

REAL_METRICS = gzip.decompress((DATA / "ray-2.60/metrics.txt.gz").read_bytes())
"""From the agent of a real Ray 2.60 whose job had tasks, actors and a counter of its own."""
SKIPPED_NAMES = Settings().metrics_skip


def parse(text: bytes, *skip: str) -> Scrape:
    result = Scrape()
    for line in text.split(b"\n"):
        result.add_line(line, tuple(name.encode() for name in skip))
    return result


# Parsing


def test_every_series_of_a_real_node_is_parsed() -> None:
    result = parse(REAL_METRICS)
    assert len(result.values) == sum(not line.startswith(b"#") for line in REAL_METRICS.splitlines())
    assert not result.dropped
    parsed = [parse_series(series) for series in result.values]
    assert None not in parsed
    labels_by_name = dict(filter(None, parsed))
    assert labels_by_name["ray_my_app_total"]["k"] == "v"
    assert labels_by_name["ray_node_cpu_count"]["ip"] == "127.0.0.1"
    assert result.types["ray_tasks"] == "gauge"


def test_default_skip_list_drops_internal_metrics_and_keeps_those_of_charts() -> None:
    names = {series.partition(b"{")[0].decode() for series in parse(REAL_METRICS, *SKIPPED_NAMES).values}
    assert names >= {"ray_tasks", "ray_actors", "ray_resources", "ray_object_store_memory", "ray_my_app_total"}
    assert names >= {f"ray_node_{name}" for name in ("cpu_utilization", "mem_used_host", "disk_usage", "cpu_count")}
    assert names >= {"ray_node_network_send_speed", "ray_component_rss_bytes", "ray_component_cpu_percentage"}
    assert not [name for name in names if name.startswith(SKIPPED_NAMES)]
    assert len(parse(REAL_METRICS, *SKIPPED_NAMES).values) < len(parse(REAL_METRICS).values) / 2


@pytest.mark.parametrize(
    ("line", "name", "labels", "value"),
    [
        (b"up 1", "up", {}, 1.0),
        (b"up 1 1786526102000", "up", {}, 1.0),
        (b'a{b="c"} 2 1786526102000', "a", {"b": "c"}, 2.0),
        (b'a{b="} 7 {",c=""} 3e5', "a", {"b": "} 7 {", "c": ""}, 3e5),
        (rb'a{b="q\"\\\n",} +Inf', "a", {"b": 'q"\\\n'}, math.inf),
        (b'a{ b = "c" , d="e"}\t4', "a", {"b": "c", "d": "e"}, 4.0),
        (b"a{} -0.5\r", "a", {}, -0.5),
    ],
)
def test_line_is_parsed_in_every_form(line: bytes, name: str, labels: dict[str, str], value: float) -> None:
    ((series, parsed_value),) = parse(line).values.items()
    assert parse_series(series) == (name, labels)
    assert parsed_value == value


@pytest.mark.parametrize("line", [b"up", b"up one", b'a{b="c"}', b"}", b"{", b"\xff\xfe"])
def test_malformed_line_is_counted_as_dropped(line: bytes) -> None:
    result = parse(line + b"\nup 1")
    assert (result.values, result.dropped) == ({b"up": 1.0}, 1)


@pytest.mark.parametrize(
    "series", [b"", b"{}", b"a}", b"1a", b"a{b}", b"a{b=c}", b'a{b="c}', b'a{"b"}', b"\xff", b'a{b="c"d}']
)
def test_malformed_series_is_not_parsed(series: bytes) -> None:
    assert parse_series(series) is None


@given(st.binary(max_size=300))
def test_parsing_never_raises(text: bytes) -> None:
    for series in parse(text).values:
        parse_series(series)


def test_series_over_the_limits_are_counted_as_dropped() -> None:
    result = parse(b"\n".join(b'a{n="%d"} 1' % n for n in range(MAX_SERIES + 5)))
    assert (len(result.values), result.dropped) == (MAX_SERIES, 5)
    long = parse(b"\n".join(b'a{n="%d%b"} 1' % (n, b"x" * 60_000) for n in range(200)))
    assert sum(map(len, long.values)) <= 4 * 2**20
    assert len(long.values) + long.dropped == 200


# Requests


def test_scrape_reads_the_whole_response() -> None:
    with serve_responses(http_response(REAL_METRICS)) as port:
        assert asyncio.run(scrape(port, (), 10)) == parse(REAL_METRICS)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (b"", "not HTTP"),
        (b"hello\r\n\r\nup 1\n", "not HTTP"),
        (b"x" * 100_000, "not HTTP"),
        (b"HTTP/1.1 503 No\r\n\r\n", "status 503"),
        (http_response(b"up 1\n", 1000), "truncated"),
        (http_response(b"x" * 1_000_000), "line too long"),
    ],
)
def test_invalid_response_fails_with_its_reason(response: bytes, reason: str) -> None:
    with serve_responses(response) as port, pytest.raises(ScrapeError, match=reason):
        asyncio.run(scrape(port, (), 30))


def test_too_large_response_fails() -> None:
    response = http_response((b"#" * 60_000 + b"\n") * 1200)
    with serve_responses(response) as port, pytest.raises(ScrapeError, match="too large"):
        asyncio.run(scrape(port, (), 30))


def test_port_that_does_not_respond_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ScrapeError, match="timeout"):
        asyncio.run(scrape(silent.getsockname()[1], (), 0.2))


def test_closed_port_fails_with_no_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ScrapeError, match="no connection"):
        asyncio.run(scrape(port, (), 5))
