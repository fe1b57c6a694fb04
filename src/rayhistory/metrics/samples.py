"""Format of stored metrics samples: up to an hour of all series of a node in one small object.

    ray-history/metrics/<ns>/<cluster>/<session>/<node>/<first time in ms>.msgpack.zst

is a zstd frame of MessagePack with the fields of `Samples`. Times are stored once. Each series has its name, its labels
and one little-endian float64 per time, which is NaN where the series had no sample. During the hour, the object is
overwritten with all samples so far.
"""

import math
from array import array
from collections.abc import Iterator
from typing import Annotated

import msgspec
import zstandard

from rayhistory.errors import RayHistoryError

MAX_SAMPLES_BYTES = 16 * 2**20
MAX_SERIES = 10_000
_MAX_TIMES = 100_000
MAX_LABELS = 64
_ZSTD_LEVEL = 6
_FORMAT = 1


class MetricsDamaged(RayHistoryError):
    """A metrics object is unreadable or inconsistent."""


# A few kilobytes can decompress to millions of values. MessagePack states the length of a list before its items. So a
# list that is too long is refused before it is decoded.
_OfSeries = msgspec.Meta(max_length=2 * MAX_SERIES)
_OfTimes = msgspec.Meta(max_length=_MAX_TIMES)
_OfLabels = msgspec.Meta(max_length=MAX_LABELS)


class SampledSeries(msgspec.Struct, array_like=True):
    name: str
    labels: Annotated[dict[str, str], _OfLabels]
    values: bytes

    def points(self, times: list[int]) -> Iterator[tuple[int, float]]:
        """Yield the time in ms and the value of each sample."""
        values = array("d", self.values)
        return ((at, value) for at, value in zip(times, values, strict=True) if not math.isnan(value))


class Samples(msgspec.Struct):
    times: Annotated[list[int], _OfTimes]
    """Times of the samples in milliseconds since 1970, by the node's clock."""
    series: Annotated[list[SampledSeries], _OfSeries]
    types: Annotated[dict[str, str], _OfSeries] = {}
    """Metric type by family: counter, gauge, histogram, …"""
    dropped: int = 0
    """Number of series that exceeded a limit or could not be parsed."""
    format: int = _FORMAT


def encode(samples: Samples) -> bytes:
    packed = msgspec.msgpack.encode(samples)
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True, write_content_size=True).compress(packed)


def decode(data: bytes) -> Samples:
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= MAX_SAMPLES_BYTES:
            raise MetricsDamaged(f"stored metrics have an unknown size, or are larger than {MAX_SAMPLES_BYTES} bytes")
        samples = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(data), type=Samples)
    except (zstandard.ZstdError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MetricsDamaged(f"stored metrics are damaged: {error}") from None
    if samples.format != _FORMAT:
        raise MetricsDamaged(f"stored metrics have format {samples.format}, but this version reads {_FORMAT}")
    if any(len(series.values) != 8 * len(samples.times) for series in samples.series):
        raise MetricsDamaged("stored metrics are damaged: a series has a wrong number of values")
    return samples


def family(name: str, types: dict[str, str]) -> str:
    """Return the metric family of a series. Buckets, sum and count belong to their histogram."""
    for suffix in ("_bucket", "_sum", "_count", "_total"):
        if name not in types and name.endswith(suffix) and name.removesuffix(suffix) in types:
            return name.removesuffix(suffix)
    return name
