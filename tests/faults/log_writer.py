"""What Ray's processes do to their log files: append, rotate by renaming, copy and cut, cut, at any moment.

Every byte that was ever written is remembered with the file that it went to: a `Life` is what one file held while it
only grew, whatever it was called. A file that is cut without a copy takes with it what nobody had read yet.
"""

import contextlib
import os
import random
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path

NAMES = (
    "raylet.out",
    "gcs_server.out",
    "dashboard.log",
    "worker-1-01000000-7.out",
    "worker-1-01000000-7.err",
    "old/a.log",
)
_MOST_CUTS = 4


@dataclass
class Life:
    name: str
    """Where it began."""
    mark: bytes
    """Its first bytes, which no other has."""
    content: bytearray = field(default_factory=bytearray)
    settled: int = 0
    """So many bytes were seen to be in the store."""
    whole: bool = True
    """False when it was cut, or its node was lost: only what is settled has to be there."""


class LogWriter:
    """Writes into the logs of one node until it is told to stop; `move` begins the logs of another session."""

    def __init__(self, seed: str, node: str) -> None:
        self.lives: dict[str, list[Life]] = {}
        """By session."""
        self.written = 0
        self.done: dict[str, int] = {}
        """How often each kind of rotation was done."""
        self._node = node
        self._dice = random.Random(seed)
        self._directory: Path | None = None
        self._open: dict[str, Life] = {}
        self._cuts: dict[str, int] = {}
        self._session = ""
        self._turn = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure:
            raise self._failure

    def move(self, directory: Path) -> None:
        with self._turn:
            self._directory, self._session = directory / "logs", directory.name
            self._open, self._cuts = {}, {}
            self.lives.setdefault(self._session, [])

    def sizes(self) -> dict[int, int]:
        """How much of each life is written now."""
        with self._turn:
            return {id(life): len(life.content) for lives in self.lives.values() for life in lives}

    def rotate_all(self) -> None:
        """At the worst moment, which the caller knows."""
        with self._turn:
            for name in list(self._open):
                self._dice.choice([self._rename, self._rename, self._copy_and_cut])(name)

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._dice.uniform(0.002, 0.03)):
                with self._turn:
                    self._step()
        except BaseException as failure:  # noqa: BLE001 - told to who waits
            self._failure = failure

    def _step(self) -> None:
        name, chance = self._dice.choice(NAMES), self._dice.random()
        if chance < 0.02:
            self._rename(name)
        elif chance < 0.03:
            self._copy_and_cut(name)
        elif chance < 0.034 and self._cuts.get(name, 0) < _MOST_CUTS:
            self._cut(name)
        else:
            self._append(name)

    def _append(self, name: str) -> None:
        assert self._directory
        path = self._directory / name
        path.parent.mkdir(exist_ok=True)
        life = self._open.get(name)
        data = b""
        if life is None:
            mark = b"%s %d %s %s\n" % (
                self._session.encode(), len(self.lives[self._session]), self._node[:8].encode(), name.encode()
            )  # fmt: skip
            life = self._open[name] = Life(name, mark)
            self.lives[self._session].append(life)
            data = mark
        lines = self._dice.choice([1, 1, 1, 5, 50, 1000])
        data += b"".join(b"%d %s\n" % (n, self._dice.randbytes(20).hex().encode()) for n in range(lines))
        if self._dice.random() < 0.1:
            data = data[:-1]  # half a line
        life.content += data
        self.written += len(data)
        with path.open("ab", buffering=0) as file:
            file.write(data)

    def _rename(self, name: str) -> None:
        """As Ray and spdlog do: the numbers of all that were rotated before go up."""
        if self._open.pop(name, None) is None:
            return
        self._shift(name)
        assert self._directory
        (self._directory / name).rename(self._directory / _numbered(name, 1))
        self._count("rotated")

    def _copy_and_cut(self, name: str) -> None:
        if self._open.pop(name, None) is None:
            return
        self._shift(name)
        assert self._directory
        shutil.copyfile(self._directory / name, self._directory / _numbered(name, 1))
        os.truncate(self._directory / name, 0)
        self._count("copied and cut")

    def _cut(self, name: str) -> None:
        life = self._open.pop(name, None)
        if life is None:
            return
        assert self._directory
        life.whole = False
        os.truncate(self._directory / name, 0)
        self._cuts[name] = self._cuts.get(name, 0) + 1
        self._count("cut")

    def _shift(self, name: str) -> None:
        assert self._directory
        highest = 1
        while (self._directory / _numbered(name, highest)).exists():
            highest += 1
        for number in range(highest, 1, -1):
            (self._directory / _numbered(name, number - 1)).rename(self._directory / _numbered(name, number))

    def _count(self, kind: str) -> None:
        self.done[kind] = self.done.get(kind, 0) + 1


def _numbered(name: str, number: int) -> str:
    """`raylet.1.out`, but `dashboard.log.1`."""
    stem, dot, extension = name.rpartition(".")
    return f"{stem}.{number}{dot}{extension}" if extension != "log" else f"{name}.{number}"


def present(directory: Path) -> dict[str, bytes]:
    """The files of a session's logs as they are now."""
    found: dict[str, bytes] = {}
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file():
                found[str(path.relative_to(directory))] = path.read_bytes()
    return found
