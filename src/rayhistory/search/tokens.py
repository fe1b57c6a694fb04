"""Tokens of log text, and the keys by which the search index knows them.

A token is a run of letters, digits, underscores and bytes above ASCII, in lower case. Every token of a text has a key.
The index also keeps the tokens themselves, so that a part of a token can be found, with two exceptions: long
hexadecimal numbers, such as ids of tasks, have keys for some of their parts instead (winnowing: of every 9 adjacent
parts of 8 digits the one with the lowest hash, so that any 16 digits contain one), and very long tokens are only noted.
"""

import re

import msgspec
import numpy as np
import numpy.typing as npt

PART_DIGITS, _WINDOW_PARTS = 8, 9
MIN_ID_DIGITS = PART_DIGITS + _WINDOW_PARTS - 1
"""A hexadecimal number of this length or more is an id: any part of it with so many digits can be found by keys."""
MAX_TOKEN_BYTES = 64
HAS_ID, HAS_LONG_TOKEN, HAS_ODD_CASE = 1, 2, 3
"""Keys of texts that have an id, a very long token, or one of the letters below."""
ODD_CASES = ("\u212a".encode(), "\u017f".encode())
"""Letters above ASCII that match k and s if the case is ignored."""

_CHUNK_BYTES = 1 << 20
_FIRST_KEY = 16
_BASE = np.uint64(0x9E3779B97F4A7C15)
_IS_WORD = np.zeros(256, np.bool_)
_IS_WORD[[*range(ord("0"), ord("9") + 1), *range(ord("a"), ord("z") + 1), ord("_"), *range(128, 256)]] = True
_IS_HEX = np.zeros(256, np.uint32)
_IS_HEX[[*range(ord("0"), ord("9") + 1), *range(ord("a"), ord("f") + 1)]] = 1
_ID = re.compile(rb"[0-9a-f]{%d,}" % MIN_ID_DIGITS)

Keys = npt.NDArray[np.uint32]
_Hashes = npt.NDArray[np.uint64]


def _powers(count: int) -> tuple[_Hashes, _Hashes]:
    """Return the powers of the base and of its inverse, modulo 2**64."""
    with np.errstate(over="ignore"):
        forward = np.cumprod(np.full(count, _BASE, np.uint64), dtype=np.uint64)
        inverse = np.cumprod(np.full(count, np.uint64(pow(int(_BASE), -1, 1 << 64)), np.uint64), dtype=np.uint64)
    return forward, inverse


_POWERS, _INVERSES = _powers(_CHUNK_BYTES + 1)


class TextTokens(msgspec.Struct):
    """The keys of a text, sorted, and the tokens of it that were not known before."""

    keys: Keys
    new_tokens: set[bytes]


class TokenReader:
    """Collects keys of texts, and each distinct token once."""

    def __init__(self) -> None:
        self._known: _Hashes = np.empty(0, np.uint64)

    def read(self, text: bytes) -> TextTokens:
        lower = text.lower()
        hashes: list[_Hashes] = []
        special: set[int] = {HAS_ODD_CASE} if any(letter in lower for letter in ODD_CASES) else set()
        new_tokens: set[bytes] = set()
        for chunk, is_cut in _chunks(lower):
            found = self._read_chunk(chunk, new_tokens, special)
            hashes.append(found)
            if is_cut:
                special.add(HAS_LONG_TOKEN)
        own = np.unique(np.concatenate(hashes)) if hashes else np.empty(0, np.uint64)
        keys = np.concatenate([np.array(sorted(special), np.uint32), _to_keys(own)])
        return TextTokens(np.unique(keys), new_tokens)

    def _read_chunk(self, chunk: bytes, new_tokens: set[bytes], special: set[int]) -> _Hashes:
        data = np.frombuffer(chunk, np.uint8)
        starts, ends = _bounds(data)
        if not len(starts):
            return np.empty(0, np.uint64)
        lengths = ends - starts
        is_long = lengths > MAX_TOKEN_BYTES
        is_id = _are_hex(data, starts, ends) & (lengths >= MIN_ID_DIGITS)
        if is_long.any():
            special.add(HAS_LONG_TOKEN)
        sums = _prefix_sums(data)
        hashes = _hash(sums, starts, ends)
        parts = _id_parts(sums, starts[is_id], ends[is_id])
        if is_id.any():
            special.add(HAS_ID)
        plain = ~is_id & ~is_long
        self._add_new(chunk, starts[plain], ends[plain], hashes[plain], new_tokens)
        return np.unique(np.concatenate([hashes, parts]))

    def _add_new(
        self, chunk: bytes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], hashes: _Hashes, new: set[bytes]
    ) -> None:
        distinct, first = np.unique(hashes, return_index=True)
        places = np.searchsorted(self._known, distinct)
        is_known = np.zeros(len(distinct), np.bool_)
        inside = places < len(self._known)
        is_known[inside] = self._known[places[inside]] == distinct[inside]
        fresh = first[~is_known]
        if len(fresh):
            new.update(
                chunk[start:end] for start, end in zip(starts[fresh].tolist(), ends[fresh].tolist(), strict=True)
            )
            self._known = np.union1d(self._known, distinct[~is_known])


def _id_parts(sums: _Hashes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> _Hashes:
    """Return the hashes of the chosen parts of ids."""
    _, first = np.unique(_hash(sums, starts, ends), return_index=True)
    starts, counts = starts[first], (ends - starts)[first] - (PART_DIGITS - 1)
    owners = np.repeat(np.arange(len(starts)), counts)
    if not len(owners):
        return np.empty(0, np.uint64)
    positions = np.arange(len(owners)) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
    hashes = _hash(sums, positions, positions + PART_DIGITS)
    lowest = np.lib.stride_tricks.sliding_window_view(hashes, _WINDOW_PARTS).min(axis=1)
    within_one_id = owners[: 1 - _WINDOW_PARTS] == owners[_WINDOW_PARTS - 1 :]
    return np.unique(lowest[within_one_id])


def token_key(token: bytes) -> int:
    """Return the key of one token, which is in lower case."""
    return int(_to_keys(_hash_of(token))[0])


def id_part_keys(digits: bytes) -> list[int]:
    """Return keys that every id has of which this is a part; none if it is too short."""
    if len(digits) < MIN_ID_DIGITS:
        return []
    sums = _prefix_sums(np.frombuffer(digits, np.uint8))
    positions = np.arange(len(digits) - PART_DIGITS + 1)
    hashes = _hash(sums, positions, positions + PART_DIGITS)
    windows = np.lib.stride_tricks.sliding_window_view(hashes, _WINDOW_PARTS)
    return sorted(set(_to_keys(windows.min(axis=1)).tolist()))


def _chunks(text: bytes) -> list[tuple[bytes, bool]]:
    """Split a text between tokens, into chunks of a megabyte; True marks a cut that may be inside a token."""
    chunks, start = [], 0
    while start < len(text):
        end = min(start + _CHUNK_BYTES, len(text))
        is_cut = False
        if end < len(text):
            stop = max(text.rfind(b"\n", start, end), text.rfind(b" ", start, end))
            is_cut = stop < 0
            end = end if stop < 0 else stop + 1
        chunks.append((text[start:end], is_cut))
        start = end
    return chunks


def _bounds(data: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    edges = np.flatnonzero(np.diff(_IS_WORD[data].view(np.int8), prepend=np.int8(0), append=np.int8(0)))
    return edges[::2], edges[1::2]


def _are_hex(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    counts = np.concatenate([np.zeros(1, np.uint32), np.cumsum(_IS_HEX[data], dtype=np.uint32)])
    result: npt.NDArray[np.bool_] = counts[ends] - counts[starts] == (ends - starts)
    return result


def _prefix_sums(data: npt.NDArray[np.uint8]) -> _Hashes:
    with np.errstate(over="ignore"):
        weighted = (data.astype(np.uint64) + np.uint64(1)) * _POWERS[: len(data)]
        return np.concatenate([np.zeros(1, np.uint64), np.cumsum(weighted, dtype=np.uint64)])


def _hash(sums: _Hashes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> _Hashes:
    """Return a polynomial hash of each range, mixed so that all of its bits depend on all bytes."""
    with np.errstate(over="ignore"):
        mixed: _Hashes = (sums[ends] - sums[starts]) * _INVERSES[starts]
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(0xD6E8FEB86659FD93)
        mixed ^= mixed >> np.uint64(32)
    return mixed


def _hash_of(token: bytes) -> _Hashes:
    sums = _prefix_sums(np.frombuffer(token, np.uint8))
    return _hash(sums, np.array([0]), np.array([len(token)]))


def _to_keys(hashes: _Hashes) -> Keys:
    return np.maximum((hashes >> np.uint64(32)).astype(np.uint32), np.uint32(_FIRST_KEY))


def is_hex(token: bytes) -> bool:
    return all(_IS_HEX[byte] for byte in token)
