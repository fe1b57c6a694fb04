"""Under which names the streams of a node are seen.

A stream whose file is there has that file's name. One whose file is gone keeps its last name as long as nothing else
has it; otherwise its number is raised as rotation would have gone on: what was `raylet.5.out` when the next
rotation removed it is `raylet.6.out`. So every name that Ray could have given leads to what it would have led to.
"""

import re
from collections.abc import Iterator

from rayhistory.layout.packs import GONE, LOG, PRESENT, Catalog, Stream

_SUFFIX = re.compile(r"(.+)\.(\d{1,6})\Z")
_BEFORE_EXTENSION = re.compile(r"(.+)\.(\d{1,6})(\.(?:log|out|err))\Z")
_EXTENSION = re.compile(r"(.+)(\.(?:log|out|err))\Z")
_SPDLOG = re.compile(r"(?:.*/)?(?:python-core-|java-worker|gcs_server|raylet)")


def shown(catalog: Catalog) -> dict[str, Stream]:
    """Every name of a log file, with its stream."""
    logs = [stream for stream in catalog.streams.values() if stream.kind == LOG]
    names = {stream.name: stream for stream in logs if stream.state == PRESENT}
    for name, number in catalog.links.items():
        if number in catalog.streams:
            names.setdefault(name, catalog.streams[number])
    gone = [stream for stream in logs if stream.state == GONE]
    later: dict[str, Iterator[str]] = {}  # what one of a name has tried need not be tried by the next
    for stream in sorted(gone, key=lambda each: (-each.since, -each.id)):
        candidates = later.setdefault(stream.name, _later(stream.name))
        names[next(candidate for candidate in candidates if candidate not in names)] = stream
    return names


def _later(name: str) -> Iterator[str]:
    """The name, and then those that rotation would give it."""
    yield name
    before, number, after = _parts(name)
    while True:
        number += 1
        yield f"{before}.{number}{after}"


def _parts(name: str) -> tuple[str, int, str]:
    if match := _BEFORE_EXTENSION.match(name):
        return match[1], int(match[2]), match[3]
    if match := _SUFFIX.match(name):
        return match[1], int(match[2]), ""
    match = _EXTENSION.match(name)
    if match and (match[2] != ".log" or _SPDLOG.match(name)):
        return match[1], 0, match[2]
    return name, 0, ""
