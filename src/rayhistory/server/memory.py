"""Memory settings of the server process, so that memory is freed after a large response."""

import ctypes
import gc
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def return_freed_memory() -> None:
    """Make glibc return large blocks of freed memory to the system. By default, each thread keeps them for reuse.

    Up to 8 MB are kept. Arrays of charts have megabytes, and the system clears memory that it hands out again, which
    took half of the CPU of a chart.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt:
            mallopt(_M_ARENA_MAX, 2)
            mallopt(_M_MMAP_THRESHOLD, 8 << 20)
            mallopt(_M_TRIM_THRESHOLD, 8 << 20)


def relax_garbage_collection() -> None:
    """Run Python's garbage collection less often, because it takes a fifth of the time of a large response.

    Responses are trees without cycles, so they are freed without it.
    """
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)
