"""Utilization of a session in a few percentages."""

from rayhistory.metrics.sample_tiles import TileId, make_tile
from rayhistory.metrics.utilization import POINTS, utilization
from support.stored_metrics import REF, Columns, samples


def found(columns: Columns) -> dict[str, list[int | None]]:
    return utilization(REF, [make_tile(TileId(0, 0, 0), [("a", samples(columns)), ("b", samples(columns))])])


def test_utilization_is_averaged_over_nodes_and_time() -> None:
    lines = found({
        ("ray_node_cpu_utilization", ()): [20.0] * 120 + [80.0] * 120,
        ("ray_node_mem_used", ()): [3.0] * 240, ("ray_node_mem_total", ()): [4.0] * 240,
    })  # fmt: skip
    assert set(lines) == {"cpu", "memory"}
    assert len(lines["cpu"]) == POINTS
    assert (lines["cpu"][0], lines["cpu"][-1]) == (20, 80)
    assert set(lines["memory"]) == {75}


def test_short_session_has_few_points() -> None:
    assert found({("ray_node_cpu_utilization", ()): [50.0, 50.0, 50.0]}) == {"cpu": [50, 50]}


def test_values_that_are_no_percentages_are_bounded() -> None:
    assert found({("ray_node_gpus_utilization", ()): [-5.0, 1e300, float("inf")]})["gpu"] == [100, None]


def test_session_without_samples_has_no_lines() -> None:
    assert utilization(REF, []) == {}
    assert found({("other", ()): [1.0]}) == {}
