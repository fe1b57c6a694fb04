"""The same samples in a real Prometheus and in a session: charts' queries and generated ones have equal results."""

import math
import os
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

from prometheus.corpus import NODES, Differences, chart_queries, generated_queries, node_samples
from prometheus.peer import VERSION, running_prometheus
from prometheus.remote_write import Series, push
from rayhistory.metrics.samples import Samples
from rayhistory.metrics.time_ranges import TimeRange
from rayhistory.server.app import create_app
from support.stored_metrics import REF, server_settings, store_object, store_session

pytestmark = pytest.mark.skipif("RAYHISTORY_TEST_PROMETHEUS" not in os.environ, reason="make test-prometheus")
GENERATED = 500
TOLERANCE = 1e-9

Results = dict[frozenset[tuple[str, str]], dict[float, float]]


class Peers(NamedTuple):
    prometheus: httpx.Client
    history: TestClient
    differences: Differences


def stored_series(samples: Samples, address: str) -> Iterator[Series]:
    """Yield a node's series with the labels that a scraping Prometheus adds; a series that ends becomes stale."""
    common = {"job": "ray", "SessionName": REF.session, "ray_io_cluster": REF.cluster, "instance": address}
    for series in samples.series:
        points = [(at, value) for at, value in _with_stale_marker(list(series_points(samples.times, series.values)))]
        yield {"__name__": series.name, **series.labels, **common}, points


def series_points(times: list[int], values: bytes) -> Iterator[tuple[int, float]]:
    return zip(times, np.frombuffer(values).tolist(), strict=True)


def _with_stale_marker(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Keep the first of several missing samples, as Prometheus does when a series vanishes from a scrape."""
    kept: list[tuple[int, float]] = []
    for at, value in points:
        if not math.isnan(value) or (kept and not math.isnan(kept[-1][1])):
            kept.append((at, value))
    return kept


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory, unused_port: int) -> Iterator[Peers]:
    directory = tmp_path_factory.mktemp("prometheus")
    store_session(directory / "store")
    with running_prometheus(directory, unused_port) as address:
        version = httpx.get(f"{address}/api/v1/status/buildinfo").json()["data"]["version"]
        differences = Differences(is_version_2=version.startswith("2."))
        print(f"\ncompared with Prometheus {version or VERSION}")
        for node, ip in NODES.items():
            samples = node_samples(node, ip, differences)
            store_object(directory / "store", node, samples)
            push(address, stored_series(samples, ip))
        with (
            httpx.Client(base_url=f"{address}/api/v1", timeout=60) as prometheus,
            TestClient(create_app(server_settings(directory))) as history,
        ):
            yield Peers(prometheus, history, differences)


@pytest.fixture(scope="module")
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def results(client: Any, path: str, query: str, times: TimeRange) -> Results | str:
    """Return the samples of each series, or the kind of the error."""
    form = {"query": query, "start": times.start_ms / 1000, "end": times.end_ms / 1000, "step": times.step_ms / 1000}
    body = client.post(path, data=form).json()
    if body["status"] != "success":
        return str(body["errorType"])
    return {
        frozenset(each["metric"].items()): {at: float(value) for at, value in each["values"]}
        for each in body["data"]["result"]
    }


def difference(expected: Results | str, found: Results | str) -> str:
    """Describe the first difference; empty if there is none."""
    if isinstance(expected, str) or isinstance(found, str):
        return "" if expected == found else f"{str(expected)[:80]} against {str(found)[:80]}"
    if expected.keys() != found.keys():
        return f"series {sorted(map(sorted, expected.keys() ^ found.keys()))[:2]}"
    for labels, points in expected.items():
        if points.keys() != found[labels].keys():
            return f"times of {sorted(labels)}: {sorted(points.keys() ^ found[labels].keys())[:3]}"
        for at, value in points.items():
            other = found[labels][at]
            is_nan = math.isnan(value) and math.isnan(other)
            if not is_nan and not math.isclose(value, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
                return f"{sorted(labels)} at {at}: {value!r} against {other!r}"
    return ""


def compare(peers: Peers, queries: list[str]) -> tuple[list[str], int]:
    """Return the differences, and the number of queries with results."""
    differences, with_results = [], 0
    for query in queries:
        times = peers.differences.times
        expected = results(peers.prometheus, "query_range", query, times)
        found = results(peers.history, f"{REF.url}prometheus/api/v1/query_range", query, times)
        with_results += bool(expected) and not isinstance(expected, str)
        if problem := difference(expected, found):
            differences.append(f"{query}: {problem}")
    return differences, with_results


def test_queries_of_all_charts_have_equal_results(peers: Peers) -> None:
    queries = chart_queries()
    differences, with_results = compare(peers, queries)
    assert not differences, "\n".join([f"{len(differences)} of {len(queries)} differ", *differences[:20]])
    assert with_results > 0.95 * len(queries), f"only {with_results} of {len(queries)} have results"
    print(f"{len(queries)} chart queries equal, {with_results} with results")


def test_generated_queries_have_equal_results(peers: Peers) -> None:
    differences, with_results = compare(
        peers, generated_queries(GENERATED, peers.differences, int(os.environ.get("RAYHISTORY_SEED", "1")))
    )
    assert not differences, "\n".join([f"{len(differences)} of {GENERATED} differ", *differences[:20]])
    assert with_results > GENERATED / 2
    print(f"{GENERATED} generated queries equal, {with_results} with results")
