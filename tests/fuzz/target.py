"""Common parts of the fuzz targets."""

from collections.abc import Callable
from typing import NamedTuple

from rayhistory.sessions import SessionRef

REF = SessionRef.checked("default", "sample", "session_2026-11-15_19-18-08_055078_15551")
NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"
MS = 1_794_770_300_000


class Target(NamedTuple):
    """A function that takes any bytes and raises only on a defect, and its valid inputs."""

    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
