"""Memory that was used once is given back: a large answer must not leave the process large for ever."""

import ctypes
import gc
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def give_back_early() -> None:
    """glibc keeps what was freed, for each thread apart, unless it is told to give back what is large."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt:
            mallopt(_ARENA_MAX, 2)
            mallopt(_MMAP_THRESHOLD, 256 << 10)
            mallopt(_TRIM_THRESHOLD, 1 << 20)


def look_for_cycles_rarely() -> None:
    """Answers are trees, and gone with their last reference: to look for cycles among ten thousand rows while they are
    made takes a fifth of the time."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)
