"""Tokens of log text, and the keys by which the search index knows them.

A token is a run of letters, digits, underscores and bytes above ASCII, in lower case. Every token of a text has a key.
The index also keeps the tokens themselves, so that a part of a token can be found, with two exceptions: long
hexadecimal numbers, such as ids of tasks, have keys for some of their parts instead (winnowing: of every 9 adjacent
parts of 8 digits the one with the lowest hash, so that any 16 digits contain one), and very long tokens are only noted.
"""

from typing import TypeVar

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

_CHUNK_BYTES = 128 << 10  # arrays of one chunk stay in the processor's cache
_FIRST_KEY = 16
_BASE = np.uint64(0x9E3779B97F4A7C15)
_HEX_DIGITS = b"0123456789abcdef"
_WORD_BYTES = b"0123456789abcdefghijklmnopqrstuvwxyz_" + bytes(range(128, 256))
_WORD_TABLE = bytes(byte in _WORD_BYTES for byte in range(256))
_NO_HEX_TABLE = bytes(byte not in _HEX_DIGITS for byte in range(256))

Keys = npt.NDArray[np.uint32]
_Hashes = npt.NDArray[np.uint64]
_T = TypeVar("_T", np.uint32, np.uint64)


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
        special: set[int] = {HAS_ODD_CASE} if any(letter in lower for letter in ODD_CASES) else set()
        new_tokens: set[bytes] = set()
        hashes = [np.empty(0, np.uint64)]
        for chunk, is_cut in _chunks(lower):
            hashes.append(self._read_chunk(chunk, new_tokens, special))
            if is_cut:
                special.add(HAS_LONG_TOKEN)
        keys = [np.array(sorted(special), np.uint32), _to_keys(_distinct(np.concatenate(hashes)))]
        return TextTokens(_distinct(np.concatenate(keys)), new_tokens)

    def _read_chunk(self, chunk: bytes, new_tokens: set[bytes], special: set[int]) -> _Hashes:
        data = np.frombuffer(chunk, np.uint8)
        starts, ends = _bounds(chunk)
        if not len(starts):
            return np.empty(0, np.uint64)
        lengths, sums = ends - starts, _prefix_sums(data)
        hashes = _hash(sums, starts, ends)
        is_plain = lengths <= MAX_TOKEN_BYTES
        if not is_plain.all():
            special.add(HAS_LONG_TOKEN)
        found = [_distinct(hashes)]
        candidates = np.flatnonzero(lengths >= MIN_ID_DIGITS)
        ids = candidates[_are_hex(chunk, starts[candidates], ends[candidates])]
        if len(ids):
            special.add(HAS_ID)
            is_plain[ids] = False
            found.append(_id_parts(sums, starts[ids], ends[ids]))
        unknown = self._unknown(found[0])
        if len(unknown):
            fresh = np.flatnonzero(is_plain & _among(hashes, unknown))
            new_tokens.update(
                chunk[start:end] for start, end in zip(starts[fresh].tolist(), ends[fresh].tolist(), strict=True)
            )
            self._known = _distinct(np.concatenate([self._known, unknown]))
        return np.concatenate(found)

    def _unknown(self, distinct: _Hashes) -> _Hashes:
        """Return the hashes of tokens that were not read before."""
        if not len(self._known):
            return distinct
        places = np.minimum(np.searchsorted(self._known, distinct), len(self._known) - 1)
        unknown: _Hashes = distinct[self._known[places] != distinct]
        return unknown


def _id_parts(sums: _Hashes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> _Hashes:
    """Return the hashes of the chosen parts of ids."""
    order = np.argsort(hashes := _hash(sums, starts, ends), kind="stable")
    first = order[np.concatenate([np.ones(1, np.bool_), hashes[order][1:] != hashes[order][:-1]])]
    starts, counts = starts[first], (ends - starts)[first] - (PART_DIGITS - 1)
    owners = np.repeat(np.arange(len(starts)), counts)
    positions = np.arange(len(owners)) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
    hashes = _hash(sums, positions, positions + PART_DIGITS)
    lowest = np.lib.stride_tricks.sliding_window_view(hashes, _WINDOW_PARTS).min(axis=1)
    within_one_id = owners[: 1 - _WINDOW_PARTS] == owners[_WINDOW_PARTS - 1 :]
    return _distinct(lowest[within_one_id])


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


def _distinct(values: npt.NDArray[_T]) -> npt.NDArray[_T]:
    """Return the distinct values, sorted. Sorting is ten times as fast as numpy's unique."""
    values = np.sort(values)
    distinct: npt.NDArray[_T] = values[
        np.concatenate([np.ones(min(1, len(values)), np.bool_), values[1:] != values[:-1]])
    ]
    return distinct


def _among(hashes: _Hashes, few: _Hashes) -> npt.NDArray[np.bool_]:
    """Return which hashes may be among a few others: by 16 of their bits, so that some are by chance."""
    table = np.zeros(1 << 16, np.bool_)
    table[(few >> np.uint64(48)).astype(np.int64)] = True
    result: npt.NDArray[np.bool_] = table[(hashes >> np.uint64(48)).astype(np.int64)]
    return result


def _chunks(text: bytes) -> list[tuple[bytes, bool]]:
    """Split a text between tokens, into chunks of bounded size; True marks a cut that may be inside a token."""
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


def _bounds(chunk: bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return where tokens begin and end."""
    is_word = np.frombuffer(b"\0" + chunk.translate(_WORD_TABLE) + b"\0", np.int8)
    edges = np.flatnonzero(is_word[1:] != is_word[:-1])
    return edges[::2], edges[1::2]


def _are_hex(chunk: bytes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which of the tokens have hexadecimal digits alone."""
    if not len(starts):
        return np.zeros(0, np.bool_)
    is_other = np.frombuffer(chunk.translate(_NO_HEX_TABLE) + b"\0", np.uint8)
    others = np.maximum.reduceat(is_other, np.stack([starts, ends], axis=1).reshape(-1))[::2]
    result: npt.NDArray[np.bool_] = others == 0
    return result


def _prefix_sums(data: npt.NDArray[np.uint8]) -> _Hashes:
    weighted = data.astype(np.uint64)
    weighted *= _POWERS[: len(data)]
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(weighted)])


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
    return not token.strip(_HEX_DIGITS)
