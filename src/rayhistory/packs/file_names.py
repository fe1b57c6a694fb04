"""File names under which users see the streams of a node.

A stream whose file exists has that file's name. A stream whose file is gone keeps its last name, unless another stream
has this name. Then the rotation number in the name of the gone file is incremented, as another rotation would have
done: `raylet.5.out` becomes `raylet.6.out`. So every name that Ray could have used has the expected content.
"""

import re
from collections.abc import Iterator

from rayhistory.packs.pack_directory import PackDirectory
from rayhistory.packs.pack_format import GONE, LOG, PRESENT, Stream

_NUMBER_SUFFIX = re.compile(r"(.+)\.(\d{1,6})\Z")
_NUMBER_BEFORE_EXTENSION = re.compile(r"(.+)\.(\d{1,6})(\.(?:log|out|err))\Z")
_EXTENSION = re.compile(r"(.+)(\.(?:log|out|err))\Z")
_SPDLOG = re.compile(r"(?:.*/)?(?:python-core-|java-worker|gcs_server|raylet)")


def files_by_name(directory: PackDirectory) -> dict[str, Stream]:
    """Map the name of every log file, including links, to its stream."""
    logs = [stream for stream in directory.streams.values() if stream.kind == LOG]
    names = {stream.name: stream for stream in logs if stream.state == PRESENT}
    for name, number in directory.links.items():
        if number in directory.streams:
            names.setdefault(name, directory.streams[number])
    gone = [stream for stream in logs if stream.state == GONE]
    candidates_of: dict[str, Iterator[str]] = {}  # shared by streams of one name: no candidate is tried twice
    for stream in sorted(gone, key=lambda each: (-each.since, -each.id)):
        candidates = candidates_of.setdefault(stream.name, _rotated_names(stream.name))
        names[next(candidate for candidate in candidates if candidate not in names)] = stream
    return names


def _rotated_names(name: str) -> Iterator[str]:
    """Yield the name, then the names that further rotations would give it."""
    yield name
    before, number, after = _split_number(name)
    while True:
        number += 1
        yield f"{before}.{number}{after}"


def _split_number(name: str) -> tuple[str, int, str]:
    """Split a name into the part before the rotation number, the number, and the part after it."""
    if match := _NUMBER_BEFORE_EXTENSION.match(name):
        return match[1], int(match[2]), match[3]
    if match := _NUMBER_SUFFIX.match(name):
        return match[1], int(match[2]), ""
    match = _EXTENSION.match(name)
    if match and (match[2] != ".log" or _SPDLOG.match(name)):
        return match[1], 0, match[2]
    return name, 0, ""
