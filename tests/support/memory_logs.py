"""Log files in memory, as a LogSource."""

from rayhistory.errors import LogNotFound
from rayhistory.logs.source import FileHistory, FlushPoint, StoredLogFile

NODE_A, NODE_B = "a" * 56, "b" * 56


class MemoryLogs:
    """Log files by node and path. Each was stored at `stored_ms` in one piece, unless `points` has its flushes."""

    def __init__(self, files: dict[tuple[str, str], bytes], stored_ms: int = 1_794_000_000_000) -> None:
        self.contents = files
        self.points: dict[tuple[str, str], list[FlushPoint]] = {}
        self.stored_ms = stored_ms
        self.reads: list[tuple[str, str, int, int]] = []

    async def nodes(self) -> list[str]:
        return sorted({node for node, _ in self.contents})

    async def files(self, node: str) -> list[StoredLogFile]:
        return [StoredLogFile(path, len(data)) for (each, path), data in self.contents.items() if each == node]

    async def read(self, node: str, path: str, start: int, end: int) -> bytes:
        self.reads.append((node, path, start, end))
        if (node, path) not in self.contents:
            raise LogNotFound(path)
        return self.contents[node, path][start:end]

    async def read_large(self, node: str, path: str, start: int, end: int, buffer: bytearray) -> bytearray:
        buffer[:] = await self.read(node, path, start, end)
        return buffer

    async def histories(self, node: str) -> dict[str, FileHistory]:
        return {
            path: FileHistory(self.points.get((node, path), [FlushPoint(len(data), self.stored_ms)]), f"memory {path}")
            for (each, path), data in self.contents.items()
            if each == node
        }
