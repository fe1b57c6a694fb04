"""Hashes of many tokens at once, with numpy: 8-byte words are read only at the positions of tokens.

Work per byte is limited to byte comparisons, which numpy does at gigabytes per second. Work per token is limited to
one hash and one lookup, because most tokens of a log are repeated. The rest is work per distinct token.
"""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

WORD_BYTES = 8
PADDING = b"\0" * WORD_BYTES
"""The required end of a text, so that 8 bytes can be read at each position."""
MIN_TOKEN_BYTES = 3
"""Minimum length of a token that is indexed.

A third of all tokens are shorter, and most texts have the same short tokens.
"""
_MAX_WORDS = 8
_TABLE_BITS = 16
_MULTIPLIER, _MIXER = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_MASKS = np.array([(1 << (8 * size)) - 1 for size in range(WORD_BYTES)] + [(1 << 64) - 1], np.uint64)

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_T = TypeVar("_T", np.uint32, np.uint64)


def token_bounds(lower: Bytes) -> tuple[Places, Places]:
    """Return where tokens start in a padded lower-case text, and their lengths, without the shortest tokens."""
    is_token = lower - np.uint8(ord("a")) < 26
    is_token |= lower - np.uint8(ord("0")) < 10
    is_token |= lower == ord("_")
    is_token |= lower >= 0x80
    edges = np.flatnonzero(is_token[1:] != is_token[:-1])
    edges += 1
    if is_token[0]:
        edges = np.concatenate([np.zeros(1, np.int64), edges])
    lengths = edges[1::2] - edges[::2]
    indexed = np.flatnonzero(lengths >= MIN_TOKEN_BYTES)  # positions select faster than booleans
    return edges.take(2 * indexed), lengths.take(indexed)


class SeenTokens:
    """A table of hashes that were seen recently. It recognises most repeated tokens before they are hashed in full."""

    def __init__(self) -> None:
        self._table = np.zeros(1 << _TABLE_BITS, np.uint64)

    def unseen(self, hashes: Hashes) -> Places:
        """Return the positions of hashes that are not in the table, and add them. May return duplicates."""
        slots = (hashes >> np.uint64(64 - _TABLE_BITS)).view(np.int64)
        places = np.flatnonzero(self._table.take(slots) != hashes)
        self._table[slots.take(places)] = hashes.take(places)
        return places


def hash_unseen(text: Bytes, starts: Places, lengths: Places, seen: SeenTokens) -> tuple[Hashes, Places]:
    """Hash ranges like `hash_ranges`. Return only the unseen hashes, and the positions of their ranges."""
    words = _words(text)
    hashes = _first_words(words, starts, lengths)
    longer = np.flatnonzero(lengths > WORD_BYTES)
    if len(longer):
        hashes[longer] = _add_words(words, hashes.take(longer), starts.take(longer), lengths.take(longer))
    unseen = seen.unseen(hashes)
    return _mix(hashes.take(unseen)), unseen


def hash_ranges(text: Bytes, starts: Places, lengths: Places) -> Hashes:
    """Return a hash of each range of a padded text, from its length and first 64 bytes."""
    words = _words(text)
    hashes = _first_words(words, starts, lengths)
    longer = np.flatnonzero(lengths > WORD_BYTES)
    if len(longer):
        hashes[longer] = _add_words(words, hashes.take(longer), starts.take(longer), lengths.take(longer))
    return _mix(hashes)


def _words(text: Bytes) -> Hashes:
    """Return the 8 bytes at each position of a padded text."""
    return np.ndarray((len(text) - WORD_BYTES + 1,), np.dtype("<u8"), text.data, strides=(1,))


def _first_words(words: Hashes, starts: Places, lengths: Places) -> Hashes:
    hashes = words[starts]
    hashes &= _MASKS.take(lengths, mode="clip")
    hashes ^= lengths.view(np.uint64) << np.uint64(56)
    hashes *= _MULTIPLIER
    return hashes


def _add_words(words: Hashes, hashes: Hashes, starts: Places, lengths: Places) -> Hashes:
    """Add all words after the first to the hashes of ranges that are longer than one word.

    The last word of a range ends with the range, so it may overlap the word before.
    """
    last = lengths - WORD_BYTES
    hashes = _add_word(hashes, words[starts + np.minimum(last, WORD_BYTES)])
    longer = np.flatnonzero(last > WORD_BYTES)
    for number in range(2, _MAX_WORDS):
        if not len(longer):
            break
        position = np.minimum(last[longer], number * WORD_BYTES)
        hashes[longer] = _add_word(hashes[longer], words[starts[longer] + position])
        longer = longer[last[longer] > number * WORD_BYTES]
    return hashes


def _add_word(hashes: Hashes, words: Hashes) -> Hashes:
    hashes = _mix(hashes)
    hashes ^= words
    hashes *= _MULTIPLIER
    return hashes


def _mix(hashes: Hashes) -> Hashes:
    """Mix the bits of each hash, so that each bit depends on all others."""
    hashes ^= hashes >> np.uint64(32)
    hashes *= _MIXER
    hashes ^= hashes >> np.uint64(32)
    return hashes


def are_hex(lower: Bytes, starts: Places, lengths: Places) -> npt.NDArray[np.bool_]:
    """Return which ranges consist only of hexadecimal digits."""
    if not len(starts):
        return np.zeros(0, np.bool_)
    digits = lower[flat_positions(starts, lengths)]
    is_digit = (digits - np.uint8(ord("0")) < 10) | (digits - np.uint8(ord("a")) < 6)
    result: npt.NDArray[np.bool_] = np.logical_and.reduceat(is_digit, np.cumsum(lengths) - lengths)
    return result


def flat_positions(starts: Places, lengths: Places) -> Places:
    """Return all positions in some non-empty ranges, one range after another."""
    firsts = np.cumsum(lengths) - lengths
    positions: Places = np.arange(int(lengths.sum())) + np.repeat(starts - firsts, lengths)
    return positions


def distinct(values: npt.NDArray[_T]) -> npt.NDArray[_T]:
    """Return the sorted distinct values. Sorting is ten times as fast as numpy's unique."""
    return distinct_sorted(np.sort(values))


def distinct_sorted(values: npt.NDArray[_T]) -> npt.NDArray[_T]:
    is_first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=is_first[1:])
    return values[is_first]


def absent(values: Hashes, among: Hashes) -> Hashes:
    """Return the values that do not occur in `among`. Both arguments must be sorted."""
    if not len(among):
        return values
    places = np.minimum(np.searchsorted(among, values), len(among) - 1)
    missing: Hashes = values[among[places] != values]
    return missing
