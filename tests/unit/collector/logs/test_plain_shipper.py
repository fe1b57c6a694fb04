"""Plain log files are stored completely, and a growing file is not uploaded again at every change."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rayhistory.collector.logs.plain_shipper import LocalLogFile, PlainShipper, by_importance, find_log_files
from rayhistory.collector.telemetry import Telemetry
from rayhistory.storage.local import LocalStore


class RecordingStore(LocalStore):
    """A local store that records its PUTs in order."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.started: list[str] = []
        self.written: list[tuple[str, int]] = []
        self.before_put: Callable[[], None] = lambda: None

    async def put(self, key: str, data: bytes | Path) -> None:
        self.started.append(key)
        self.before_put()
        await super().put(key, data)
        self.written.append((key, (await self.head(key)).size))


def run_shipper(tmp_path: Path, use: Callable[[PlainShipper, RecordingStore, Path], Awaitable[None]]) -> None:
    async def run() -> None:
        logs = tmp_path / "session" / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        store = RecordingStore(tmp_path / "store")
        await use(PlainShipper(logs, store, lambda name: f"logs/{name}", Telemetry(), interval=1), store, logs)

    asyncio.run(run())


def test_growing_file_is_uploaded_after_growth_by_a_quarter_or_when_it_stops_growing(tmp_path: Path) -> None:
    async def use(shipper: PlainShipper, store: RecordingStore, logs: Path) -> None:
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
        assert store.written[-1] == ("logs/worker.out", 1200)  # unchanged since the last round
        path.write_bytes(b"x" * 1500)
        await shipper.ship_due()
        assert store.written[-1] == ("logs/worker.out", 1500)  # by a quarter
        await shipper.ship_due()
        assert len(store.written) == 3  # nothing new

    run_shipper(tmp_path, use)


@pytest.mark.slow
def test_uploaded_bytes_are_linear_for_a_file_that_never_stops_growing(tmp_path: Path) -> None:
    """A thousand rounds of growth cost a few times the final size, not a thousand times."""

    async def use(shipper: PlainShipper, store: RecordingStore, logs: Path) -> None:
        path = logs / "busy.log"
        with path.open("ab", buffering=0) as file:
            for _ in range(1000):
                file.write(b"x" * 1000)
                await shipper.ship_due()
        await shipper.finish()
        assert store.written[-1] == ("logs/busy.log", 1_000_000)
        assert sum(size for _, size in store.written) < 7_000_000

    run_shipper(tmp_path, use)


def test_truncated_file_is_uploaded_again(tmp_path: Path) -> None:
    async def use(shipper: PlainShipper, store: RecordingStore, logs: Path) -> None:
        path = logs / "a.log"
        path.write_bytes(b"x" * 1000)
        await shipper.ship_due()
        path.write_bytes(b"new")
        await shipper.ship_due()
        assert store.written[-1] == ("logs/a.log", 3)

    run_shipper(tmp_path, use)


def test_finish_uploads_all_changed_files_smallest_first(tmp_path: Path) -> None:
    """If the grace period ends early, one large file is missing and not many small ones."""

    async def use(shipper: PlainShipper, store: RecordingStore, logs: Path) -> None:
        for size in (5000, 10, 300, 0):
            (logs / f"{size}.log").write_bytes(b"x" * size)
        (logs / "old").mkdir()
        (logs / "old" / "worker.out").write_bytes(b"moved")
        assert len(shipper.unshipped()) == 5
        await shipper.finish()
        assert shipper.unshipped() == []
        assert store.started[-1] == "logs/5000.log"
        assert ("logs/old/worker.out", 5) in store.written

    run_shipper(tmp_path, use)


def test_job_drivers_and_workers_with_stderr_come_first() -> None:
    """If the grace period is short, the most useful files are stored."""
    sizes = {
        "raylet.out": 5,
        "worker-a-1-2.out": 9000,
        "worker-a-1-2.err": 10,
        "worker-b-1-3.out": 1,
        "worker-b-1-3.err": 0,
        "job-driver-x.log": 10**6,
    }
    files = [LocalLogFile(name, name, size, 0) for name, size in sizes.items()]
    assert [file.name for file in by_importance(files)] == [
        "job-driver-x.log",
        "worker-a-1-2.err",
        "worker-a-1-2.out",
        "worker-b-1-3.err",
        "worker-b-1-3.out",
        "raylet.out",
    ]


def test_vanished_file_is_not_an_error(tmp_path: Path) -> None:
    """Ray rotates and moves files while they are read."""

    async def use(shipper: PlainShipper, store: RecordingStore, logs: Path) -> None:
        (logs / "here.log").write_bytes(b"x")
        (logs / "gone.log").write_bytes(b"x")
        files = shipper._changed()
        (logs / "gone.log").unlink()
        assert await shipper._ship_all(files) == 0
        assert [key for key, _ in store.written] == ["logs/here.log"]

    run_shipper(tmp_path, use)


def test_only_regular_files_and_links_inside_the_directory_are_found(tmp_path: Path) -> None:
    """Links that lead out, pipes, and names that are not UTF-8 are ignored."""
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
    files, excess = find_log_files(logs)
    assert sorted((file.name, file.target) for file in files) == [("inside", "real.log"), ("real.log", "real.log")]
    assert excess == 0
    assert find_log_files(tmp_path / "nothing") == ([], 0)


def open_file_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def replace_with_link(logs: Path, name: str, outside: Path) -> None:
    """Replace the first part of the name with a link to its counterpart outside."""
    first = name.partition("/")[0]
    (logs / first).rename(logs.parent / f"was-{first}")
    (logs / first).symlink_to(outside / first)


@pytest.mark.parametrize("name", ["a.log", "folder/a.log", "folder/deep/a.log"])
def test_file_or_folder_replaced_with_a_link_after_the_listing_is_not_read(tmp_path: Path, name: str) -> None:
    """A process that writes logs must not get the collector's own files stored as its logs."""
    for directory in ("outside", "session/logs"):
        path = tmp_path / directory / name
        path.parent.mkdir(parents=True)
        path.write_text(directory)

    async def use(shipper: PlainShipper, store: RecordingStore, logs: Path) -> None:
        files = shipper._changed()
        replace_with_link(logs, name, tmp_path / "outside")
        assert await shipper._ship_all(files) == 0
        assert store.started == []
        await shipper.finish()
        assert store.started == []

    run_shipper(tmp_path, use)


def test_file_replaced_with_a_link_during_the_upload_is_stored_as_it_was(tmp_path: Path) -> None:
    """No descriptor stays open."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.log").write_text("secret")

    async def use(shipper: PlainShipper, store: RecordingStore, logs: Path) -> None:
        (logs / "a.log").write_text("log")
        before = open_file_count()
        store.before_put = lambda: replace_with_link(logs, "a.log", tmp_path / "outside")
        await shipper.ship_due()
        assert await store.get("logs/a.log") == b"log"
        await asyncio.sleep(0)
        assert open_file_count() <= before

    run_shipper(tmp_path, use)


def test_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    async def use(shipper: PlainShipper, store: RecordingStore, logs: Path) -> None:
        (logs / "a.log").write_text("log")
        files = shipper._changed()
        (logs / "a.log").unlink()
        os.mkfifo(logs / "a.log")
        assert await shipper._ship_all(files) == 0
        assert store.started == []

    run_shipper(tmp_path, use)
