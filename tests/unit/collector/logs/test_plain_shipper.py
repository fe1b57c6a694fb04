"""Log files reach the store whole, and a growing file does not cost its size again and again."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rayhistory.collector.logs import LogShipper, find_logs
from rayhistory.collector.metrics import Metrics
from rayhistory.storage.local import LocalStore


class Counting(LocalStore):
    """A real store that remembers what was written, in order."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.begun: list[str] = []
        self.written: list[tuple[str, int]] = []
        self.at_put: Callable[[], None] = lambda: None

    async def put(self, key: str, data: bytes | Path) -> None:
        self.begun.append(key)
        self.at_put()
        await super().put(key, data)
        self.written.append((key, (await self.head(key)).size))


def ship(tmp_path: Path, use: Callable[[LogShipper, Counting, Path], Awaitable[None]]) -> None:
    async def session() -> None:
        logs = tmp_path / "session" / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        store = Counting(tmp_path / "store")
        await use(LogShipper(logs, store, lambda name: f"logs/{name}", Metrics(), interval=1), store, logs)

    asyncio.run(session())


def test_a_growing_file_is_written_when_it_grew_by_a_quarter_or_is_quiet(tmp_path: Path) -> None:
    """The bytes written stay in proportion to the bytes that there are."""

    async def use(shipper: LogShipper, store: Counting, logs: Path) -> None:
        path = logs / "worker.out"
        path.write_bytes(b"x" * 1000)
        await shipper.ship_due()
        assert store.written == [("logs/worker.out", 1000)]
        path.write_bytes(b"x" * 1100)
        await shipper.ship_due()
        assert len(store.written) == 1  # grew by a tenth
        path.write_bytes(b"x" * 1200)
        await shipper.ship_due()
        assert len(store.written) == 1  # by a fifth
        await shipper.ship_due()
        assert store.written[-1] == ("logs/worker.out", 1200)  # quiet since the last look
        path.write_bytes(b"x" * 1500)
        await shipper.ship_due()
        assert store.written[-1] == ("logs/worker.out", 1500)  # by a quarter
        await shipper.ship_due()
        assert len(store.written) == 3  # nothing new

    ship(tmp_path, use)


def test_total_bytes_are_linear_for_a_file_that_never_rests(tmp_path: Path) -> None:
    """A thousand rounds of growth cost a few times the final size, not a thousand times."""

    async def use(shipper: LogShipper, store: Counting, logs: Path) -> None:
        path = logs / "busy.log"
        with path.open("ab", buffering=0) as file:
            for _ in range(1000):
                file.write(b"x" * 1000)
                await shipper.ship_due()
        await shipper.finish()
        assert store.written[-1] == ("logs/busy.log", 1_000_000)
        assert sum(size for _, size in store.written) < 7_000_000

    ship(tmp_path, use)


def test_a_file_that_was_cut_is_written_again(tmp_path: Path) -> None:
    """Truncation is a change like any other."""

    async def use(shipper: LogShipper, store: Counting, logs: Path) -> None:
        path = logs / "a.log"
        path.write_bytes(b"x" * 1000)
        await shipper.ship_due()
        path.write_bytes(b"new")
        await shipper.ship_due()
        assert store.written[-1] == ("logs/a.log", 3)

    ship(tmp_path, use)


def test_the_end_writes_all_that_differs_smallest_first(tmp_path: Path) -> None:
    """When the time runs out, one large file is missing and not many small ones."""

    async def use(shipper: LogShipper, store: Counting, logs: Path) -> None:
        for size in (5000, 10, 300, 0):
            (logs / f"{size}.log").write_bytes(b"x" * size)
        (logs / "old").mkdir()
        (logs / "old" / "worker.out").write_bytes(b"moved")
        assert len(shipper.left()) == 5
        await shipper.finish()
        assert shipper.left() == []
        assert store.begun[-1] == "logs/5000.log"
        assert ("logs/old/worker.out", 5) in store.written

    ship(tmp_path, use)


def test_files_that_vanish_are_no_error(tmp_path: Path) -> None:
    """Ray rotates and moves files while they are read."""

    async def use(shipper: LogShipper, store: Counting, logs: Path) -> None:
        (logs / "here.log").write_bytes(b"x")
        (logs / "gone.log").write_bytes(b"x")
        found = shipper._differing()
        (logs / "gone.log").unlink()
        assert await shipper._ship_all(found) == 0
        assert [key for key, _ in store.written] == ["logs/here.log"]

    ship(tmp_path, use)


def test_only_what_is_inside_the_directory_is_read(tmp_path: Path) -> None:
    """Links that lead out, sockets, pipes and names that are no text are left alone."""
    logs = tmp_path / "logs"
    logs.mkdir()
    (tmp_path / "secret").write_text("secret")
    (logs / "real.log").write_text("real")
    (logs / "inside").symlink_to("real.log")
    (logs / "outside").symlink_to(tmp_path / "secret")
    (logs / "loop").symlink_to("loop")
    (logs / "up").symlink_to(tmp_path)
    os.mkfifo(logs / "pipe")
    Path(os.fsdecode(os.fsencode(logs) + b"/\xff.log")).write_text("?")
    files, beyond = find_logs(logs)
    assert sorted((file.name, file.real) for file in files) == [("inside", "real.log"), ("real.log", "real.log")]
    assert beyond == 0
    assert find_logs(tmp_path / "nothing") == ([], 0)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def swap(logs: Path, name: str, outside: Path) -> None:
    """The first part of the name is now a link to what lies outside."""
    first = name.partition("/")[0]
    (logs / first).rename(logs.parent / f"was-{first}")
    (logs / first).symlink_to(outside / first)


@pytest.mark.parametrize("name", ["a.log", "folder/a.log", "folder/deep/a.log"])
def test_a_file_swapped_for_a_link_after_the_listing_is_not_read(tmp_path: Path, name: str) -> None:
    """Nor one in a folder that was: whoever writes logs could have the collector's own files stored as theirs."""
    for directory in ("outside", "session/logs"):
        path = tmp_path / directory / name
        path.parent.mkdir(parents=True)
        path.write_text(directory)

    async def use(shipper: LogShipper, store: Counting, logs: Path) -> None:
        found = shipper._differing()
        swap(logs, name, tmp_path / "outside")
        assert await shipper._ship_all(found) == 0
        assert store.begun == []
        await shipper.finish()
        assert store.begun == []

    ship(tmp_path, use)


def test_a_file_swapped_for_a_link_before_the_store_opens_it_is_stored_as_it_was(tmp_path: Path) -> None:
    """And nothing stays open."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.log").write_text("secret")

    async def use(shipper: LogShipper, store: Counting, logs: Path) -> None:
        (logs / "a.log").write_text("log")
        before = open_files()
        store.at_put = lambda: swap(logs, "a.log", tmp_path / "outside")
        await shipper.ship_due()
        assert await store.get("logs/a.log") == b"log"
        await asyncio.sleep(0)
        assert open_files() <= before

    ship(tmp_path, use)


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    async def use(shipper: LogShipper, store: Counting, logs: Path) -> None:
        (logs / "a.log").write_text("log")
        found = shipper._differing()
        (logs / "a.log").unlink()
        os.mkfifo(logs / "a.log")
        assert await shipper._ship_all(found) == 0
        assert store.begun == []

    ship(tmp_path, use)
