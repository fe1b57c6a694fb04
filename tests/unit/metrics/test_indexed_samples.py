"""Stored objects in memory: labels are built once, equal columns are kept once."""

from rayhistory.metrics.indexed_samples import IndexedSamples
from rayhistory.promql.values import labels_of
from support.stored_metrics import samples

COMMON = {"job": "ray"}


def stored() -> IndexedSamples:
    buckets = {("b", (("le", str(bound)),)): [0.0] * 100 for bound in range(50)}
    return IndexedSamples(samples({("a", (("NodeAddress", "10.0.0.1"),)): [1.0] * 100, **buckets}))


def test_series_are_found_by_name_with_common_labels() -> None:
    rows = stored().rows_by_name(COMMON)
    assert rows["a"] == [(labels_of({"__name__": "a", "NodeAddress": "10.0.0.1", "job": "ray"}), 0)]
    assert len(rows["b"]) == 50


def test_labels_are_built_once() -> None:
    indexed = stored()
    assert indexed.rows_by_name(COMMON) is indexed.rows_by_name(dict(COMMON))
    assert indexed.rows_by_name({"job": "other"})["a"][0][0] != indexed.rows_by_name(COMMON)["a"][0][0]


def test_address_is_that_of_the_metrics() -> None:
    assert stored().address == "10.0.0.1"
    assert IndexedSamples(samples({("a", ()): [1.0]})).address == ""


def test_equal_columns_use_memory_once() -> None:
    indexed = stored()
    assert len({id(each.values) for each in indexed.series}) == 2
    assert indexed.memory_bytes() < 51 * 900 + 2 * 800 + 1_601
