"""Watch a process and its children: the highest number of children, and the highest memory use."""

import threading
from pathlib import Path
from typing import Self

_INTERVAL_S = 0.05


def children_of(pid: int, command: str = "") -> list[int]:
    """Return those children of a process whose own command line contains `command`."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for listed in lists for child in _read(listed).split()]
    return [child for child in children if command in _read(Path(f"/proc/{child}/cmdline")).replace("\0", " ")]


def memory_of(pid: int) -> int:
    """Return the bytes of memory that a process uses by itself; 0 if it has ended."""
    return int((_read(Path(f"/proc/{pid}/status")).partition("RssAnon:")[2].split() or ["0"])[0]) << 10


class ProcessWatch:
    """Watches a process and its children until the end of a `with` statement."""

    def __init__(self, pid: int, command: str) -> None:
        self._pid = pid
        self._command = command
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.most_children = 0
        self.most_memory = 0
        """Highest memory use, in bytes, of the process and all its children together."""
        self.most_memory_of_a_child = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            memory = [memory_of(child) for child in children_of(self._pid, self._command)]
            self.most_children = max(self.most_children, len(memory))
            self.most_memory_of_a_child = max(self.most_memory_of_a_child, *memory, 0)
            self.most_memory = max(self.most_memory, memory_of(self._pid) + sum(memory))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process has ended
        return ""
