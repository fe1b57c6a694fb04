"""Globs for log file paths. The work is limited for any glob."""

import fnmatch
import re
from collections.abc import Iterable

from rayhistory.errors import UsageError

_ANY_DEPTH = "**"
_MAX_GLOB_LENGTH, _MAX_GLOB_PARTS = 1000, 32


class PathGlob:
    """A glob as in Python: `*` matches within a directory, `**` across directories."""

    def __init__(self, glob: str) -> None:
        parts = [part for part in glob.split("/") if part not in ("", ".")] or ["*"]
        if glob.startswith("/") or ".." in parts:
            raise UsageError(f"Invalid glob filter: {glob}. It must be a relative path and cannot contain '..'.")
        if len(glob) > _MAX_GLOB_LENGTH or len(parts) > _MAX_GLOB_PARTS:
            limits = f"at most {_MAX_GLOB_LENGTH} characters and {_MAX_GLOB_PARTS} folders"
            raise UsageError(f"Invalid glob filter: it may have {limits}.")
        self._parts = [None if part == _ANY_DEPTH else re.compile(fnmatch.translate(part)) for part in parts]

    def matches(self, entry: str) -> bool:
        states = self._skip({0})
        for name in entry.rstrip("/").split("/"):
            states = self._skip({following for state in states for following in self._after(state, name)})
        return len(self._parts) in states

    def _skip(self, states: set[int]) -> set[int]:
        """Return these positions in the glob, and the next one after each `**`, because `**` may match no directory."""
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
