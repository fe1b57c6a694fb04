"""The order in which worker processes take the files of a test run."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")

_FILES_DURING_A_RECORDING = 4


class FileToRun(msgspec.Struct, Generic[T]):
    """The tests of a file, and what they need."""

    items: list[T]
    starts_ray: bool = False
    recordings: set[str] = msgspec.field(default_factory=set)
    """Recordings of a real Ray that the tests use. The first file that needs one makes it, while others wait."""


def in_order(files: Sequence[FileToRun[T]]) -> list[FileToRun[T]]:
    """Alternate files that start Ray, and mostly wait, with other files. So few Rays start at the same time.

    The first files make the recordings. The files after these need no recording, so that no worker waits for one.
    """
    recording = _first_of_each_recording(files)
    rest = [file for file in files if all(file is not each for each in recording)]
    with_ray = recording + _recordings_last([file for file in rest if file.starts_ray])
    others = _recordings_last([file for file in rest if not file.starts_ray])
    return [file for pair in zip_longest(with_ray, others) for file in pair if file]


def _first_of_each_recording(files: Sequence[FileToRun[T]]) -> list[FileToRun[T]]:
    """Return the files that make the recordings: for each, if possible, a file that starts Ray anyway."""
    found: dict[str, FileToRun[T]] = {}
    for file in sorted(files, key=lambda each: not each.starts_ray):
        for name in file.recordings:
            found.setdefault(name, file)
    return list({id(file): file for _, file in sorted(found.items())}.values())


def _recordings_last(files: Sequence[FileToRun[T]]) -> list[FileToRun[T]]:
    """Move some files without recordings to the front. They keep the workers busy while recordings are made."""
    first = [file for file in files if not file.recordings][:_FILES_DURING_A_RECORDING]
    return [*first, *(file for file in files if all(file is not each for each in first))]
