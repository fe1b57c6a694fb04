"""Send samples to Prometheus by its remote-write protocol: protobuf, in a snappy frame without compression."""

import math
import struct
from collections.abc import Iterable, Iterator

import httpx

Series = tuple[dict[str, str], list[tuple[int, float]]]
"""Labels, and samples: time in ms and value; NaN means that the series is stale."""
_STALE = struct.pack("<Q", 0x7FF0000000000002)
_BATCH = 500
_LITERAL = 60_000


def push(address: str, series: Iterable[Series]) -> None:
    batch: list[Series] = []
    for each in series:
        batch.append(each)
        if len(batch) == _BATCH:
            _post(address, batch)
            batch = []
    if batch:
        _post(address, batch)


def _post(address: str, batch: list[Series]) -> None:
    body = b"".join(_field(1, _time_series(*each)) for each in batch)
    headers = {
        "Content-Encoding": "snappy",
        "Content-Type": "application/x-protobuf",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    }
    response = httpx.post(f"{address}/api/v1/write", content=b"".join(_snappy(body)), headers=headers, timeout=60)
    assert response.status_code in (200, 204), response.text


def _time_series(labels: dict[str, str], samples: list[tuple[int, float]]) -> bytes:
    pairs = [_field(1, _field(1, name.encode()) + _field(2, value.encode())) for name, value in sorted(labels.items())]
    points = [_field(2, b"\x09" + _value(value) + b"\x10" + _varint(at)) for at, value in samples]
    return b"".join((*pairs, *points))


def _value(value: float) -> bytes:
    return _STALE if math.isnan(value) else struct.pack("<d", value)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _snappy(data: bytes) -> Iterator[bytes]:
    """Yield the block format of snappy with literals only."""
    yield _varint(len(data))
    for start in range(0, len(data), _LITERAL):
        chunk = data[start : start + _LITERAL]
        yield b"\xf4" + struct.pack("<H", len(chunk) - 1) + chunk
