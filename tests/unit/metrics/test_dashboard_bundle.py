"""Dashboards of a session in one object; damaged ones are refused."""

import pytest
import zstandard

from rayhistory.metrics.dashboard_bundle import MAX_BUNDLE_BYTES, decode_bundle, encode_bundle
from rayhistory.metrics.samples import MetricsDamaged


def test_dashboards_survive_and_other_files_are_left_out() -> None:
    files = {"a.json": b'{"uid": "a"}', "list.json": b"[1]", "half.json": b'{"uid"', "text.json": b"\xff"}
    assert decode_bundle(encode_bundle(files)) == [{"uid": "a"}]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"damaged",
        zstandard.compress(b"[1]"),
        zstandard.compress(b"{"),
        zstandard.compress(b'{"a":' * 5_000),
        zstandard.compress(bytes(MAX_BUNDLE_BYTES + 1)),
        encode_bundle({"a.json": b"{}"})[:-3],
    ],
    ids=range(7),
)
def test_damaged_bundles_are_refused(data: bytes) -> None:
    with pytest.raises(MetricsDamaged):
        decode_bundle(data)
