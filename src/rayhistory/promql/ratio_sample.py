"""`limit_ratio`: choose a share of all series by a hash of their labels, the same series as Prometheus chooses."""

import struct

import numpy as np

from rayhistory.promql.arrays import Floats
from rayhistory.promql.labels import Labels
from rayhistory.promql.query_errors import EvaluationFailed
from rayhistory.promql.values import Vector

_MASK = 2**64 - 1
_PRIMES = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_ONE_BYTE_SIZE = 255


def limit_ratio(vector: Vector, ratio: Floats) -> Vector:
    """Keep a share of the series. A ratio of -0.3 keeps exactly those that a ratio of 0.7 leaves out."""
    if np.isnan(ratio).any():
        raise EvaluationFailed("Ratio value is NaN")
    offsets = np.array([xxhash64(_encoded(labels)) / _MASK for labels in vector.labels])[:, None]
    chosen = np.where(ratio >= 0, offsets < ratio, offsets >= 1 + ratio) if vector.labels else vector.present
    present = vector.present & chosen
    return Vector(vector.labels, vector.values, present).rows(np.flatnonzero(present.any(axis=1)).tolist())


def _encoded(labels: Labels) -> bytes:
    """Encode labels as Prometheus holds them in memory: sizes and texts."""
    texts = (text.encode("utf-8", "surrogatepass") for pair in labels for text in pair)
    return b"".join(_size(len(text)) + text for text in texts)


def _size(size: int) -> bytes:
    return bytes([size]) if size < _ONE_BYTE_SIZE else b"\xff" + size.to_bytes(3, "little")


def xxhash64(data: bytes) -> int:
    """Return the 64-bit xxHash with seed 0."""
    one, two, three, four, five = _PRIMES
    if len(data) >= 32:
        lanes = [(one + two) & _MASK, two, 0, -one & _MASK]
        for start in range(0, len(data) - 31, 32):
            words = struct.unpack_from("<4Q", data, start)
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
        found = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            found = ((found ^ _round(0, lane)) * one + four) & _MASK
    else:
        found = five
    found = (found + len(data)) & _MASK
    rest = data[len(data) // 32 * 32 :]
    while len(rest) >= 8:
        found = (_rotated(found ^ _round(0, int.from_bytes(rest[:8], "little")), 27) * one + four) & _MASK
        rest = rest[8:]
    if len(rest) >= 4:
        found = (_rotated(found ^ int.from_bytes(rest[:4], "little") * one & _MASK, 23) * two + three) & _MASK
        rest = rest[4:]
    for byte in rest:
        found = _rotated(found ^ byte * five & _MASK, 11) * one & _MASK
    return _mixed(found)


def _mixed(found: int) -> int:
    found = (found ^ found >> 33) * _PRIMES[1] & _MASK
    found = (found ^ found >> 29) * _PRIMES[2] & _MASK
    return found ^ found >> 32


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * _PRIMES[1]) & _MASK, 31) * _PRIMES[0] & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK
