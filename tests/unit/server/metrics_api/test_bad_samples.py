"""Charts of samples as bad clocks, crashed collectors and broken stores leave them: correct values, or a gap."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.metrics.samples import Samples, encode
from rayhistory.server.app import create_app
from support.stored_metrics import REF, START_MS, samples, server_settings, store_object, store_session

NODE = "a" * 56
API = f"{REF.url}prometheus/api/v1/query_range"
PANEL = f"{REF.url}api/history/charts/rayDefaultDashboard/panels/24"
HOUR_MS = 3_600_000


@contextmanager
def served(directory: Path, *objects: tuple[int, Samples | bytes]) -> Iterator[TestClient]:
    """Serve a session with objects of one node, each with the time in its key."""
    store_session(directory / "store")
    for first_ms, stored in objects:
        store_object(directory / "store", NODE, stored, first_ms)
    with TestClient(create_app(server_settings(directory))) as client:
        yield client


def counted(values: list[float], start_ms: int = START_MS, times: list[int] | None = None) -> Samples:
    made = samples({("ray_events_total", (("ip", "10.0.0.1"),)): values}, start_ms)
    made.times = times or made.times
    return made


def values_of(client: TestClient, query: str, steps: int) -> list[float | None]:
    """Return the values of the only series at steps of 15 s."""
    start = START_MS // 1000
    response = client.get(API, params={"query": query, "start": start, "end": start + 15 * (steps - 1), "step": 15})
    (row,) = response.json()["data"]["result"]
    found = {round(at - start) // 15: float(value) for at, value in row["values"]}
    return [found.get(step) for step in range(steps)]


def test_clock_that_was_set_back_and_equal_times_are_sorted(tmp_path: Path) -> None:
    """The last sample of a time counts."""
    times = [START_MS + 15_000 * step for step in (0, 1, 2, 4, 2, 3)]
    with served(tmp_path, (START_MS, counted([1, 2, 9, 5, 3, 4], times=times))) as client:
        assert values_of(client, "ray_events_total", 5) == [1, 2, 3, 4, 5]
        assert values_of(client, "resets(ray_events_total[1h])", 5)[-1] == 0


def test_two_collectors_of_one_node_make_one_series(tmp_path: Path) -> None:
    """The second began in the middle, on a clock that is 5 s later."""
    first, second = counted([10, 20, 30, 40]), counted([25, 35, 45, 55], START_MS + 20_000)
    with served(tmp_path, (START_MS, first), (START_MS + 20_000, second)) as client:
        assert values_of(client, "ray_events_total", 6) == [10, 20, 30, 40, 45, 55]
        assert values_of(client, "count(ray_events_total)", 6) == [1] * 6
        assert values_of(client, "resets(ray_events_total[1h])", 6)[-1] == 0


def test_reset_of_a_counter_is_no_decrease(tmp_path: Path) -> None:
    """After the reset, the counter is not extrapolated below zero."""
    with served(tmp_path, (START_MS, counted([100, 115, 5, 20, 35]))) as client:
        assert values_of(client, "increase(ray_events_total[30s])", 5) == [None, 30, 10, 20, 30]


def test_numbers_that_are_not_finite_stay_what_they_are(tmp_path: Path) -> None:
    """A missing sample is stored as NaN, so that NaN from Ray is one, too."""
    with served(tmp_path, (START_MS, counted([1, math.inf, -math.inf, math.nan, 5]))) as client:
        assert values_of(client, "ray_events_total", 5) == [1, math.inf, -math.inf, None, 5]
        assert str(values_of(client, "sum_over_time(ray_events_total[1m])", 5)[2]) == "nan"


def stored_hour(minutes: int = 60, start_ms: int = START_MS) -> Samples:
    labels = (("ip", "10.0.0.1"), ("NodeType", "head"))
    names = ("autoscaler_active_nodes", "autoscaler_pending_nodes")
    return samples({(name, labels): [1.0] * (4 * minutes) for name in names}, start_ms)


def panel(client: TestClient, **params: Any) -> Any:
    response = client.get(PANEL, params={"from": str(START_MS), "to": str(START_MS + 4 * HOUR_MS), **params})
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-40],
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: data[:60] + bytes(20) + data[80:],
    ],
    ids=["end missing", "half", "empty", "overwritten"],
)
def test_object_that_was_not_written_whole_is_a_gap_with_a_reason(tmp_path: Path, damage: Any) -> None:
    second = START_MS + HOUR_MS
    broken = damage(encode(stored_hour(start_ms=second)))
    third = stored_hour(start_ms=second + HOUR_MS)
    with served(tmp_path, (START_MS, stored_hour()), (second, broken), (second + HOUR_MS, third)) as client:
        data = panel(client)
    assert data["series"]
    (gap,) = data["gaps"]
    assert (gap["from_ms"], gap["to_ms"]) == (second, second + HOUR_MS)
    assert gap["reason"].startswith("metrics of node aaaaaaaaaaaa could not be read")


def test_object_that_is_missing_is_a_gap_with_a_reason(tmp_path: Path) -> None:
    later = START_MS + 3 * HOUR_MS
    with served(tmp_path, (START_MS, stored_hour()), (later, stored_hour(start_ms=later))) as client:
        (gap,) = panel(client)["gaps"]
        assert panel(client, to=str(START_MS + HOUR_MS // 2))["gaps"] == []
    assert (gap["from_ms"], gap["to_ms"]) == (START_MS + HOUR_MS, later)
    assert gap["reason"].startswith("metrics of node aaaaaaaaaaaa are not stored")


def test_gaps_before_the_range_do_not_crowd_out_those_in_it(tmp_path: Path) -> None:
    """At most 100 are listed, and all in the range are counted. Queries also read samples from before the range."""
    later = START_MS + HOUR_MS
    with served(tmp_path, (START_MS, stored_hour()), (later, stored_hour(start_ms=later))) as client:
        for number in range(150):
            node = f"{number:056x}"
            store_object(tmp_path / "store", node, b"damaged", START_MS)
            store_object(tmp_path / "store", node, b"damaged" if number >= 120 else stored_hour(1, later), later)
        data = panel(client, **{"from": str(later + 60_000)})
        before = panel(client)
    assert {gap["from_ms"] for gap in data["gaps"]} == {data["from_ms"]}
    assert (len(data["gaps"]), data["gaps_total"]) == (30, 30)
    assert (len(before["gaps"]), before["gaps_total"]) == (100, 180)


def test_short_pause_between_objects_is_no_gap(tmp_path: Path) -> None:
    """A restarted collector misses some samples."""
    later = START_MS + HOUR_MS + 240_000
    with served(tmp_path, (START_MS, stored_hour()), (later, stored_hour(start_ms=later))) as client:
        assert panel(client)["gaps"] == []
