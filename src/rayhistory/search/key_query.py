"""The keys that a unit of a search index must have for a pattern to match in it."""

import re

import msgspec

from rayhistory.search.tokens import (
    HAS_ID,
    HAS_LONG_TOKEN,
    HAS_ODD_CASE,
    MAX_TOKEN_BYTES,
    MIN_FRAGMENT_BYTES,
    id_part_keys,
    is_hex,
    token_key,
)

MAX_EXPANSIONS = 2000
"""A fragment that occurs in more tokens than this is too common to exclude units."""
_FRAGMENT = re.compile(rb"[0-9a-z_\x80-\xff]+")
_ASCII_FRAGMENT = re.compile(rb"[0-9a-z_]+")


class Fragment(msgspec.Struct, frozen=True):
    """A piece of required text: a whole token, or the start, end or middle of one."""

    text: bytes
    starts_token: bool
    ends_token: bool
    odd_case: bool
    """True if some letters may also match special Unicode letters, because case is ignored."""


Alternative = frozenset[int]
"""A set of keys. A unit must have all of them."""
Clause = list[Alternative]
"""Sets of keys. A unit must have all keys of at least one set."""


def fragments_of(literal: str, *, case: bool) -> list[Fragment]:
    """Split a text that every match contains.

    Its ends may be inside of tokens, because the surrounding text is unknown.
    """
    text = literal.encode().lower()
    found = []
    for match in (_FRAGMENT if case else _ASCII_FRAGMENT).finditer(text):
        begin, end = match.span()
        starts = begin > 0 and text[begin - 1] < 0x80
        ends = end < len(text) and text[end] < 0x80
        if MIN_FRAGMENT_BYTES <= end - begin <= MAX_TOKEN_BYTES:
            odd = not case and not {ord("k"), ord("s")}.isdisjoint(match[0])
            found.append(Fragment(match[0], starts, ends, odd))
    return found


def clause_of(fragment: Fragment, tokens: bytes) -> Clause | None:
    """Return sets of keys. A unit must have all keys of one set. None if the text occurs in too many tokens."""
    clause: Clause = [frozenset({HAS_LONG_TOKEN})]
    if fragment.odd_case:
        clause.append(frozenset({HAS_ODD_CASE}))
    if fragment.starts_token and fragment.ends_token:
        return [*clause, frozenset({token_key(fragment.text)})]
    expanded = _expand(fragment, tokens)
    if expanded is None:
        return None
    clause += [frozenset({token_key(token)}) for token in expanded]
    if is_hex(fragment.text):
        parts = id_part_keys(fragment.text)
        clause.append(frozenset(parts) if parts else frozenset({HAS_ID}))
    return clause


def _expand(fragment: Fragment, tokens: bytes) -> set[bytes] | None:
    """Return the tokens that contain a fragment; None if there are too many."""
    needle = (b"\n" if fragment.starts_token else b"") + fragment.text + (b"\n" if fragment.ends_token else b"")
    lines = b"\n" + tokens + b"\n"
    found: set[bytes] = set()
    position = lines.find(needle)
    while position >= 0:
        inside = position + (1 if fragment.starts_token else 0)
        begin, end = lines.rfind(b"\n", 0, inside) + 1, lines.find(b"\n", inside)
        found.add(lines[begin:end])
        if len(found) > MAX_EXPANSIONS:
            return None
        position = lines.find(needle, end)
    return found
