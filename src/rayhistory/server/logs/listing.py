"""Listing a node's log files as Ray does: by glob, folders among them, and in groups."""

import fnmatch
import re
from collections.abc import Iterable

from rayhistory.errors import UsageError

_ANY_DEPTH = "**"
_LONGEST, _MOST_PARTS = 1000, 32


def listed(paths: Iterable[str], glob: str) -> dict[str, list[str]]:
    """Names that match, folders with a slash at the end, by the kind of process that wrote them."""
    pattern = _Pattern(glob)
    entries = {entry for path in paths for entry in _with_folders(path) if pattern.matches(entry)}
    groups: dict[str, list[str]] = {}
    for entry in sorted(entries):
        groups.setdefault(group_of(entry), []).append(entry)
    return groups


def _with_folders(path: str) -> Iterable[str]:
    yield path
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path + "/"


class _Pattern:
    """`*` stays within a folder, `**` does not, as in Python's own globs."""

    def __init__(self, glob: str) -> None:
        parts = [part for part in glob.split("/") if part not in ("", ".")] or ["*"]
        if glob.startswith("/") or ".." in parts:
            raise UsageError(f"Invalid glob filter: {glob}. It must be a relative path and cannot contain '..'.")
        if len(glob) > _LONGEST or len(parts) > _MOST_PARTS:
            most = f"at most {_LONGEST} characters and {_MOST_PARTS} folders"
            raise UsageError(f"Invalid glob filter: it may have {most}.")
        self._parts = [None if part == _ANY_DEPTH else re.compile(fnmatch.translate(part)) for part in parts]

    def matches(self, entry: str) -> bool:
        at = self._skip({0})
        for name in entry.rstrip("/").split("/"):
            at = self._skip({following for state in at for following in self._after(state, name)})
        return len(self._parts) in at

    def _skip(self, states: set[int]) -> set[int]:
        """`**` may also stand for no folder at all."""
        reached = set(states)
        for state in range(len(self._parts)):
            if state in reached and self._parts[state] is None:
                reached.add(state + 1)
        return reached

    def _after(self, state: int, name: str) -> Iterable[int]:
        if state < len(self._parts):
            part = self._parts[state]
            if part is None:
                yield state
            elif part.match(name):
                yield state + 1


def group_of(name: str) -> str:
    if "worker" in name and name.endswith(".out"):
        return "worker_out"
    if "worker" in name and name.endswith(".err"):
        return "worker_err"
    if "core-worker" in name and name.endswith(".log"):
        return "core_worker"
    if "core-driver" in name and name.endswith(".log"):
        return "driver"
    for mark, group in _MARKS:
        if mark in name:
            return group
    return "internal"


_MARKS = (
    ("raylet.", "raylet"),
    ("gcs_server.", "gcs_server"),
    ("log_monitor", "internal"),
    ("monitor", "autoscaler"),
    ("agent.", "agent"),
    ("dashboard.", "dashboard"),
)
