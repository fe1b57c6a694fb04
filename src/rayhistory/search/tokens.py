"""Tokens of log text, and their keys in the search index.

A token is a sequence of at least 3 letters, digits, underscores and non-ASCII bytes, in lower case. Every token of a
text has a key. The index also stores the tokens, so that fragments of tokens can be found. There are two exceptions.
Long hexadecimal numbers, such as task ids, have keys for some of their substrings instead (winnowing: of every 9
adjacent substrings of 8 digits, the one with the lowest hash, so that any 16 digits contain one). Very long tokens are
only marked.
"""

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from rayhistory.logs.source import Content
from rayhistory.search.token_hashes import (
    MIN_TOKEN_BYTES,
    PADDING,
    WORD_BYTES,
    Bytes,
    Hashes,
    Places,
    SeenTokens,
    absent,
    are_hex,
    distinct,
    distinct_sorted,
    flat_positions,
    hash_ranges,
    hash_unseen,
    token_bounds,
)

PART_DIGITS, _WINDOW_PARTS = 8, 9
MIN_ID_DIGITS = PART_DIGITS + _WINDOW_PARTS - 1
"""A hexadecimal number of at least this length is an id. Any substring with this many digits can be found by keys."""
MAX_TOKEN_BYTES = 64
MIN_FRAGMENT_BYTES = MIN_TOKEN_BYTES
"""A shorter part of a word may be a token that is not indexed."""
HAS_ID, HAS_LONG_TOKEN, HAS_ODD_CASE = 1, 2, 3
"""Keys of texts that contain an id, a very long token, or one of the letters in ODD_CASES."""
ODD_CASES = ("\u212a".encode(), "\u017f".encode())
"""Non-ASCII letters that match k and s if case is ignored."""

_CHUNK_BYTES = 512 << 10  # arrays of one chunk stay in the processor's cache
_FIRST_CHUNK_BYTES = 16 << 10  # small, because no token of the first chunk is known as seen
_FIRST_KEY = 16
_HEX_DIGITS = b"0123456789abcdef"

Keys = npt.NDArray[np.uint32]


class TextTokens(msgspec.Struct):
    """The sorted keys of a text, and its new tokens, without ids and very long tokens."""

    keys: Keys
    new_hashes: Hashes
    """Sorted hashes of all new tokens."""
    tokens: list[bytes]


class _Chunk(msgspec.Struct):
    """A piece of a text, and the positions of tokens that earlier pieces do not have."""

    lower: bytes
    hashes: Hashes
    starts: Places
    lengths: Places
    is_plain: npt.NDArray[np.bool_]
    """Marks tokens that are neither ids nor very long."""
    id_parts: Hashes
    special: set[int]


def read_tokens(text: Content, start: int, end: int, known: Hashes) -> TextTokens:
    """Return the keys of text[start:end], and its tokens whose hashes are not in `known`."""
    seen = SeenTokens()
    chunks = [_read_chunk(lower, seen, is_cut=is_cut) for lower, is_cut in _chunks(text, start, end)]
    none = np.empty(0, np.uint64)
    everything = distinct(np.concatenate([none, *(chunk.hashes for chunk in chunks)]))
    id_parts = distinct(np.concatenate([none, *(chunk.id_parts for chunk in chunks)]))
    special = set().union(*(chunk.special for chunk in chunks))
    keys = [np.array(sorted(special), np.uint32), _to_keys(everything), _to_keys(id_parts)]
    new = absent(everything, known)
    return TextTokens(distinct(np.concatenate(keys)), new, _tokens(chunks, new) if len(new) else [])


def _read_chunk(lower: bytes, seen: SeenTokens, *, is_cut: bool) -> _Chunk:
    data = np.frombuffer(lower + PADDING, np.uint8)
    starts, lengths = token_bounds(data)
    hashes, unseen = hash_unseen(data, starts, lengths, seen)
    starts, lengths = starts[unseen], lengths[unseen]
    is_plain = lengths < MIN_ID_DIGITS
    chunk = _Chunk(lower, hashes, starts, lengths, is_plain, np.empty(0, np.uint64), _special(lower, is_cut=is_cut))
    long = np.flatnonzero(~is_plain)
    if len(long):
        is_id = are_hex(data, starts[long], lengths[long])
        is_short = lengths[long] <= MAX_TOKEN_BYTES
        is_plain[long] = ~is_id & is_short
        chunk.special |= set() if is_short.all() else {HAS_LONG_TOKEN}
        if is_id.any():
            ids = long[is_id]
            chunk.special.add(HAS_ID)
            chunk.id_parts = _id_parts(data, hashes[ids], starts[ids], lengths[ids])
    return chunk


def _special(lower: bytes, *, is_cut: bool) -> set[int]:
    found = {HAS_LONG_TOKEN} if is_cut else set()
    if not lower.isascii() and any(letter in lower for letter in ODD_CASES):
        found.add(HAS_ODD_CASE)
    return found


def _id_parts(data: Bytes, hashes: Hashes, starts: Places, lengths: Places) -> Hashes:
    """Return the hashes of the chosen substrings of ids."""
    _, first = np.unique(hashes, return_index=True)
    starts, counts = starts[first], lengths[first] - (PART_DIGITS - 1)
    owners = np.repeat(np.arange(len(starts)), counts)
    lowest = _lowest_parts(data, flat_positions(starts, counts))
    within_one_id = owners[: 1 - _WINDOW_PARTS] == owners[_WINDOW_PARTS - 1 :]
    return distinct(lowest[within_one_id])


def _lowest_parts(data: Bytes, positions: Places) -> Hashes:
    """Return the lowest hash of each window of substrings at these positions."""
    hashes = hash_ranges(data, positions, np.full(len(positions), PART_DIGITS))
    lowest: Hashes = np.lib.stride_tricks.sliding_window_view(hashes, _WINDOW_PARTS).min(axis=1)
    return lowest


def _tokens(chunks: list[_Chunk], wanted: Hashes) -> list[bytes]:
    """Return the distinct plain tokens with these hashes."""
    table = np.zeros(1 << 16, np.bool_)  # by 16 bits of the hash; tokens that pass by chance do no harm
    table[(wanted >> np.uint64(48)).astype(np.int64)] = True
    chosen = [np.flatnonzero(table[(each.hashes >> np.uint64(48)).astype(np.int64)] & each.is_plain) for each in chunks]
    pairs = list(zip(chunks, chosen, strict=True))
    _, first = np.unique(np.concatenate([chunk.hashes[places] for chunk, places in pairs]), return_index=True)
    numbers = np.repeat(np.arange(len(chunks)), [len(places) for places in chosen])[first]
    starts = np.concatenate([chunk.starts[places] for chunk, places in pairs])[first]
    ends = starts + np.concatenate([chunk.lengths[places] for chunk, places in pairs])[first]
    return [
        chunks[number].lower[start:end]
        for number, start, end in zip(numbers.tolist(), starts.tolist(), ends.tolist(), strict=True)
    ]


def merged(known: Hashes, new: Hashes) -> Hashes:
    """Return the values of both sorted arrays, sorted. A stable sort merges them in one pass."""
    return distinct_sorted(np.sort(np.concatenate([known, new]), kind="stable"))


def token_key(token: bytes) -> int:
    """Return the key of one lower-case token."""
    data = np.frombuffer(token + PADDING, np.uint8)
    return int(_to_keys(hash_ranges(data, np.array([0]), np.array([len(token)])))[0])


def id_part_keys(digits: bytes) -> list[int]:
    """Return the token keys of every id that contains these digits; none if there are too few digits."""
    if len(digits) < MIN_ID_DIGITS:
        return []
    data = np.frombuffer(digits + PADDING, np.uint8)
    return sorted(set(_to_keys(_lowest_parts(data, np.arange(len(digits) - PART_DIGITS + 1))).tolist()))


def _chunks(text: Content, start: int, stop: int) -> Iterator[tuple[bytes, bool]]:
    """Yield pieces of a text in lower case, split between tokens. True marks a cut that may be inside of a token."""
    size = _FIRST_CHUNK_BYTES
    while start < stop:
        end = min(start + size, stop)
        size = min(4 * size, _CHUNK_BYTES)
        is_cut = False
        if end < stop:
            gap = max(text.rfind(b"\n", start, end), text.rfind(b" ", start, end))
            is_cut = gap < 0
            end = end if gap < 0 else gap + 1
        yield bytes(text[start:end]).lower(), is_cut
        start = end


def _to_keys(hashes: Hashes) -> Keys:
    return np.maximum((hashes >> np.uint64(32)).astype(np.uint32), np.uint32(_FIRST_KEY))


def is_hex(token: bytes) -> bool:
    return not token.strip(_HEX_DIGITS)


assert PART_DIGITS == WORD_BYTES  # noqa: S101  a part is hashed as one word
