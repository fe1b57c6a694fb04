"""The format of stored metrics samples."""

import math
from array import array

import pytest
import zstandard

from rayhistory.metrics.samples import MAX_SAMPLES_BYTES, MetricsDamaged, SampledSeries, Samples, decode, encode


def values(*numbers: float) -> bytes:
    return array("d", numbers).tobytes()


ENCODED = encode(Samples([1], [SampledSeries("a", {}, values(1.0))]))


def test_encoded_samples_are_decoded_again() -> None:
    series = [SampledSeries("a", {"b": "c"}, values(1.0, math.nan)), SampledSeries("d", {}, values(math.inf, -0.0))]
    samples = Samples([1000, 2000], series, {"a": "gauge"}, 3)
    decoded = decode(encode(samples))
    assert decoded == samples
    assert list(decoded.series[0].points(decoded.times)) == [(1000, 1.0)]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"x" * 100, id="not zstd"),
        pytest.param(ENCODED[:-3], id="truncated"),
        pytest.param(ENCODED[:-1] + b"x", id="wrong checksum"),
        pytest.param(encode(Samples([1, 2], [SampledSeries("a", {}, values(1.0))])), id="wrong number of values"),
        pytest.param(encode(Samples([1], [], format=2)), id="newer format"),
        pytest.param(zstandard.compress(b"\xc1"), id="not MessagePack"),
    ],
)
def test_damaged_object_raises(data: bytes) -> None:
    with pytest.raises(MetricsDamaged):
        decode(data)


def test_too_large_object_is_rejected_by_its_size() -> None:
    with pytest.raises(MetricsDamaged, match="are larger than"):
        decode(zstandard.compress(b"\0" * (MAX_SAMPLES_BYTES + 1)))
