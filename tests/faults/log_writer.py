"""A log writer that appends, rotates by renaming, copies and truncates, and truncates, as Ray's processes do.

It remembers every byte that it wrote, by `LogVersion`. Truncation without a copy loses the bytes that the collector had
not read yet.
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
_MAX_TRUNCATIONS = 4


@dataclass
class LogVersion:
    """The content of one log file from its creation or truncation to the next, under any name."""

    name: str
    """Its first name."""
    header: bytes
    """Its first line, which is unique."""
    content: bytearray = field(default_factory=bytearray)
    confirmed_bytes: int = 0
    """Bytes that were found in the store."""
    complete: bool = True
    """False after truncation or loss of the node: only the confirmed bytes are required."""


class LogWriter:
    """Writes into the logs of one node until stopped; `move` continues in another session."""

    def __init__(self, seed: str, node: str) -> None:
        self.versions: dict[str, list[LogVersion]] = {}
        """Log versions by session."""
        self.written = 0
        self.rotations: dict[str, int] = {}
        """Rotations by kind."""
        self._node = node
        self._rng = random.Random(seed)
        self._directory: Path | None = None
        self._open: dict[str, LogVersion] = {}
        self._truncations: dict[str, int] = {}
        self._session = ""
        self._lock = threading.Lock()
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
        with self._lock:
            self._directory, self._session = directory / "logs", directory.name
            self._open, self._truncations = {}, {}
            self.versions.setdefault(self._session, [])

    def sizes(self) -> dict[int, int]:
        """Bytes written so far, by the version's `id`."""
        with self._lock:
            return {id(version): len(version.content) for versions in self.versions.values() for version in versions}

    def rotate_all(self) -> None:
        """Rotate every open file."""
        with self._lock:
            for name in list(self._open):
                self._rng.choice([self._rename, self._rename, self._copy_and_truncate])(name)

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._rng.uniform(0.002, 0.03)):
                with self._lock:
                    self._step()
        except BaseException as failure:  # noqa: BLE001 - raised by `stop`
            self._failure = failure

    def _step(self) -> None:
        name, draw = self._rng.choice(NAMES), self._rng.random()
        if draw < 0.02:
            self._rename(name)
        elif draw < 0.03:
            self._copy_and_truncate(name)
        elif draw < 0.034 and self._truncations.get(name, 0) < _MAX_TRUNCATIONS:
            self._truncate(name)
        else:
            self._append(name)

    def _append(self, name: str) -> None:
        assert self._directory
        path = self._directory / name
        path.parent.mkdir(exist_ok=True)
        version = self._open.get(name)
        data = b""
        if version is None:
            header = b"%s %d %s %s\n" % (
                self._session.encode(), len(self.versions[self._session]), self._node[:8].encode(), name.encode()
            )  # fmt: skip
            version = self._open[name] = LogVersion(name, header)
            self.versions[self._session].append(version)
            data = header
        lines = self._rng.choice([1, 1, 1, 5, 50, 1000])
        data += b"".join(b"%d %s\n" % (n, self._rng.randbytes(20).hex().encode()) for n in range(lines))
        if self._rng.random() < 0.1:
            data = data[:-1]  # an incomplete line
        version.content += data
        self.written += len(data)
        with path.open("ab", buffering=0) as file:
            file.write(data)

    def _rename(self, name: str) -> None:
        """Rotate as Ray and spdlog do: older files get the next number."""
        if self._open.pop(name, None) is None:
            return
        self._shift(name)
        assert self._directory
        (self._directory / name).rename(self._directory / _numbered(name, 1))
        self._count("rotated")

    def _copy_and_truncate(self, name: str) -> None:
        if self._open.pop(name, None) is None:
            return
        self._shift(name)
        assert self._directory
        shutil.copyfile(self._directory / name, self._directory / _numbered(name, 1))
        os.truncate(self._directory / name, 0)
        self._count("copied and truncated")

    def _truncate(self, name: str) -> None:
        version = self._open.pop(name, None)
        if version is None:
            return
        assert self._directory
        version.complete = False
        os.truncate(self._directory / name, 0)
        self._truncations[name] = self._truncations.get(name, 0) + 1
        self._count("truncated")

    def _shift(self, name: str) -> None:
        assert self._directory
        highest = 1
        while (self._directory / _numbered(name, highest)).exists():
            highest += 1
        for number in range(highest, 1, -1):
            (self._directory / _numbered(name, number - 1)).rename(self._directory / _numbered(name, number))

    def _count(self, kind: str) -> None:
        self.rotations[kind] = self.rotations.get(kind, 0) + 1


def _numbered(name: str, number: int) -> str:
    """`raylet.1.out`, but `dashboard.log.1`."""
    stem, dot, extension = name.rpartition(".")
    return f"{stem}.{number}{dot}{extension}" if extension != "log" else f"{name}.{number}"


def read_files(directory: Path) -> dict[str, bytes]:
    """Return the content of all files below a directory."""
    found: dict[str, bytes] = {}
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file():
                found[str(path.relative_to(directory))] = path.read_bytes()
    return found
