"""Samples of a node's metrics, as they are kept: an hour of all series in one small object, ready for charts.

    ray-history/metrics/<ns>/<cluster>/<session>/<node>/<first time in ms>.msgpack.zst

is a zstd frame of MessagePack, the fields of `Samples`. Times are there once; each series has its name, its labels and
one little-endian float64 per time, which is NaN where the series was not there. While the hour lasts, the object is
written again and again with what has come since.
"""

import math
from array import array
from collections.abc import Iterator

import msgspec
import zstandard

from rayhistory.errors import RayHistoryError

LARGEST = 128 * 2**20
_LEVEL = 6


class DamagedMetrics(RayHistoryError):
    """An object of metrics that cannot be read."""


class Series(msgspec.Struct, array_like=True):
    name: str
    labels: dict[str, str]
    values: bytes

    def points(self, times: list[int]) -> Iterator[tuple[int, float]]:
        """What was sampled, with its time in ms."""
        values = array("d", self.values)
        return ((at, value) for at, value in zip(times, values, strict=True) if not math.isnan(value))


class Samples(msgspec.Struct):
    times: list[int]
    """Milliseconds since 1970, by the node's clock."""
    series: list[Series]
    types: dict[str, str] = {}
    """Of each family: counter, gauge, histogram, …"""
    dropped: int = 0
    """Series that were beyond the bounds or could not be read."""
    format: int = 1


def encode(samples: Samples) -> bytes:
    packed = msgspec.msgpack.encode(samples)
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True).compress(packed)


def decode(data: bytes) -> Samples:
    try:
        if not 0 <= zstandard.frame_content_size(data) <= LARGEST:
            raise DamagedMetrics("of a size that cannot be")
        samples = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(data), type=Samples)
    except (zstandard.ZstdError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedMetrics(str(error)) from None
    if samples.format != 1 or any(len(series.values) != 8 * len(samples.times) for series in samples.series):
        raise DamagedMetrics("times and values do not fit together")
    return samples


def family(name: str, types: dict[str, str]) -> str:
    """The family of a series: that of a histogram's buckets, sum and count is the histogram."""
    for suffix in ("_bucket", "_sum", "_count", "_total"):
        if name not in types and name.endswith(suffix) and name.removesuffix(suffix) in types:
            return name.removesuffix(suffix)
    return name
