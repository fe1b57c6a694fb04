"""Series are selected from stored objects by matchers of their own labels and of those that a scrape adds."""

import pytest

from rayhistory.metrics.sample_querier import SampleQuerier
from rayhistory.metrics.sample_tiles import TileId, make_tile
from rayhistory.promql.matchers import Matcher
from support.stored_metrics import REF, START_MS, samples

NODES = {"a" * 56: "10.0.0.1", "b" * 56: "10.0.0.2"}


def querier() -> SampleQuerier:
    stored = [
        (node, samples({("up", (("ip", ip), ("State", "OK"))): [1.0, 2.0], ("down", (("ip", ip),)): [0.0, 0.0]}))
        for node, ip in NODES.items()
    ]
    return SampleQuerier(REF, [make_tile(TileId(0, 0, 0), stored)], START_MS + 10**9)


@pytest.mark.parametrize(
    ("matchers", "count"),
    [
        ([("__name__", "=", "up")], 2),
        ([("__name__", "=", "up"), ("instance", "=", "10.0.0.1")], 1),
        ([("__name__", "=", "up"), ("instance", "=~", "10.*"), ("State", "!=", "OK")], 0),
        ([("__name__", "=~", "up|down"), ("SessionName", "=", REF.session)], 4),
        ([("__name__", "!=", "up"), ("job", "=", "ray")], 2),
        ([("__name__", "=", "up"), ("__name__", "=", "down")], 0),
        ([("__name__", "=", "up"), ("__name__", "!=", "up")], 0),
        ([("SessionName", "=", "other")], 0),
        ([("missing", "=", ""), ("State", "=", "OK")], 2),
    ],
)  # fmt: skip
def test_matchers_select_series(matchers: list[tuple[str, str, str]], count: int) -> None:
    found = querier().select(tuple(Matcher(*each) for each in matchers), START_MS, START_MS + 60_000)
    assert sum(len(block.labels) for block in found) == count


def test_nothing_is_selected_outside_of_the_times() -> None:
    assert querier().select((Matcher("__name__", "=", "up"),), 0, START_MS - 1) == []
    (block,) = querier().select((Matcher("__name__", "=", "up"),), START_MS, START_MS)
    assert block.values.tolist() == [[1.0], [1.0]]
