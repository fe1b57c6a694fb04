"""Format of stored metrics samples: up to an hour of all series of a node in one small object.

    ray-history/metrics/<ns>/<cluster>/<session>/<node>/<first time in ms>.msgpack.zst

is a zstd frame of MessagePack with the fields of `Samples`. Times are stored once. Each series has its name, its labels
and one little-endian float64 per time, which is NaN where the series had no sample. During the hour, the object is
overwritten with all samples so far.
"""

import math
from array import array
from collections.abc import Iterator

import msgspec
import zstandard

from rayhistory.errors import RayHistoryError

MAX_SAMPLES_BYTES = 128 * 2**20
_ZSTD_LEVEL = 6
_FORMAT = 1


class MetricsDamaged(RayHistoryError):
    """A metrics object is unreadable or inconsistent."""


class SampledSeries(msgspec.Struct, array_like=True):
    name: str
    labels: dict[str, str]
    values: bytes

    def points(self, times: list[int]) -> Iterator[tuple[int, float]]:
        """Yield the time in ms and the value of each sample."""
        values = array("d", self.values)
        return ((at, value) for at, value in zip(times, values, strict=True) if not math.isnan(value))


class Samples(msgspec.Struct):
    times: list[int]
    """Milliseconds since 1970, by the node's clock."""
    series: list[SampledSeries]
    types: dict[str, str] = {}
    """Metric type by family: counter, gauge, histogram, …"""
    dropped: int = 0
    """Series that exceeded a limit or could not be parsed."""
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
