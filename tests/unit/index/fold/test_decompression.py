"""Streaming decompression."""

import gzip
from collections.abc import Callable

import pytest
import zstandard

from rayhistory.index.fold.decompression import decompressor_for


@pytest.mark.slow
@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_decompression_bomb_is_read_in_bounded_pieces(compress: Callable[[bytes], bytes]) -> None:
    bomb = compress(b" " * 2**28) * 4
    decompressor = decompressor_for(bomb[:8])
    assert decompressor
    sizes = [len(piece) for piece in decompressor.feed(bomb)]
    assert sum(sizes) == 2**30
    assert max(sizes) <= 2**23
    assert not decompressor.truncated
