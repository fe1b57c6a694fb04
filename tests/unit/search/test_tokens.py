"""Tokens and keys of texts, against a reference that reads one token after another."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayhistory.search import tokens
from rayhistory.search.token_hashes import MIN_TOKEN_BYTES
from rayhistory.search.tokens import (
    HAS_ID,
    HAS_LONG_TOKEN,
    MAX_TOKEN_BYTES,
    MIN_ID_DIGITS,
    id_part_keys,
    is_hex,
    read_tokens,
    token_key,
)

TEXTS = st.lists(
    st.one_of(
        st.sampled_from([b"Error", b"error_2", b"ab", b"x" * 9, b"y" * 17, b"z" * 70, b"deadbeef12345678", b"0" * 15]),
        st.text("abz019_Kﬀé", max_size=20).map(str.encode),
        st.binary(max_size=5),
    ),
    max_size=60,
).map(b" \n".join)


def plain_tokens(text: bytes) -> set[bytes]:
    return {each for each in re.findall(rb"[0-9a-z_\x80-\xff]+", text.lower()) if len(each) >= MIN_TOKEN_BYTES}


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(TEXTS, TEXTS)
def test_tokens_and_keys_are_those_of_a_search_token_by_token(text: bytes, earlier: bytes) -> None:
    chunk_bytes = tokens._FIRST_CHUNK_BYTES, tokens._CHUNK_BYTES
    tokens._FIRST_CHUNK_BYTES, tokens._CHUNK_BYTES = 80, 200
    try:
        known = read_tokens(earlier, 0, len(earlier), np.empty(0, np.uint64)).new_hashes
        found = read_tokens(text, 0, len(text), known)
    finally:
        tokens._FIRST_CHUNK_BYTES, tokens._CHUNK_BYTES = chunk_bytes
    expected = plain_tokens(text)
    ids = {each for each in expected if is_hex(each) and len(each) >= MIN_ID_DIGITS}
    long = {each for each in expected if len(each) > MAX_TOKEN_BYTES}
    keys = set(found.keys.tolist())
    assert keys >= {token_key(each) for each in expected}
    assert keys >= {key for each in ids for key in id_part_keys(each)}
    assert (HAS_ID in keys, HAS_LONG_TOKEN in keys) == (bool(ids), bool(long))
    assert set(found.tokens) == expected - ids - long - plain_tokens(earlier)


def test_many_distinct_tokens_are_all_found() -> None:
    """The table of seen tokens has fewer places than these."""
    words = [b"word%d" % number for number in range(100_000)]
    text = b" ".join([*words, *words])
    found = read_tokens(text, 0, len(text), np.empty(0, np.uint64))
    assert set(found.tokens) == set(words)
    assert len(found.tokens) == len(words)
