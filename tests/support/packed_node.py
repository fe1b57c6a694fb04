"""A logs directory, a store, and the series of packs between them."""

import asyncio
from pathlib import Path

from rayhistory.collector.logs.pack_series import PackSeries
from rayhistory.packs.pack_directory import PackDirectory
from rayhistory.packs.pack_reader import PackReader
from rayhistory.storage.local import LocalStore

PREFIX = "logs/node"


class CountingStore(LocalStore):
    """A local store that records its range reads."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.reads: list[tuple[str, int]] = []

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.reads.append((key, end - start))
        return await super().get_range(key, start, end)


class PackedNode:
    """One node whose log files are stored as packs."""

    def __init__(self, home: Path) -> None:
        self.logs = home / "logs"
        self.logs.mkdir(parents=True)
        self.home = home
        self.store = CountingStore(home / "store")
        self.line_count = 0
        self.series = PackSeries(self.logs, PackDirectory())

    def append(self, name: str, lines: int = 1, width: int = 20) -> None:
        """Append numbered lines; no line is ever written twice."""
        path = self.logs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            for _ in range(lines):
                self.line_count += 1
                file.write(f"line {self.line_count} ".encode().ljust(width, b"x") + b"\n")

    def flush(self, *, lose_response: bool = False) -> int:
        """Upload all new content and return the number of packs; stop after one if its response is lost."""
        count = 0
        while pack := self.series.build(final=True):
            asyncio.run(self.store.put(f"{PREFIX}/{pack.name}", pack.data))
            count += 1
            if lose_response:
                break
        return count

    def restart(self) -> None:
        """Restart the collector: only the store and the files remain."""
        reader = self.reader()
        self.series = PackSeries(self.logs, reader.directory, reader.newest_number)

    def reader(self) -> PackReader:
        reader = PackReader(self.store, PREFIX)
        asyncio.run(reader.refresh())
        return reader

    def read_all(self) -> dict[str, bytes]:
        reader = self.reader()

        async def contents() -> dict[str, bytes]:
            return {name: await reader.read(name, 0, 1 << 40) for name in reader.files}

        return asyncio.run(contents())

    def on_disk(self) -> dict[str, bytes]:
        paths = [path for path in self.logs.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.logs)): path.read_bytes() for path in paths}

    def packs(self) -> list[Path]:
        return sorted((self.home / "store" / PREFIX).rglob("*.pack"))


ROTATED_NAMES = {
    "dashboard.log": "dashboard.log{}",
    "raylet.out": "raylet{}.out",
    "worker-a-1-2.err": "worker-a-1-2{}.err",
}
"""How Python's handlers (`x.log.1`) and spdlog (`x.1.out`) name rotated files."""


def rotate(logs: Path, rotated_name: str, backups: int = 3) -> None:
    """Rotate a file by renaming; the oldest backup is overwritten."""
    names = [logs / rotated_name.format(f".{number}" if number else "") for number in range(backups + 1)]
    for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
        if newer.exists():
            newer.rename(older)
