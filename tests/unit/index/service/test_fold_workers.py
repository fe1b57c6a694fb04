"""Fold processes serve several jobs, and are replaced after anything unusual."""

import asyncio
import os
import signal
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from rayhistory.errors import IndexFailed, StoreUnavailable
from rayhistory.index.fold.fold_process import FoldJob, FoldReport
from rayhistory.index.fold.part_tables import KEYS
from rayhistory.index.fold.sources import list_sources
from rayhistory.index.manifest import Manifest
from rayhistory.index.service import fold_workers
from rayhistory.index.service.fold_engine import ProcessEngine
from rayhistory.sessions import Layout
from rayhistory.storage import open_store
from support.folding import END, RECORDED, REF, as_lines, put, settings_for

pytestmark = pytest.mark.slow


def running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Folds:
    """Folds of one small session, and the processes that ran them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.engine = ProcessEngine()
        self.workers = self.engine._workers

    async def fold(
        self, on_report: Callable[[FoldReport], None] = lambda report: None, *, fresh: bool = True
    ) -> Manifest:
        settings = settings_for(self.directory)
        sources = await list_sources(open_store(settings), Layout(), REF)
        with tempfile.TemporaryDirectory() as scratch:
            job = FoldJob(msgspec.to_builtins(settings), REF, END, scratch, fresh=fresh, sources=sources)
            return await self.engine.fold(job, on_report)

    async def idle_pids(self) -> list[int]:
        """Wait until no worker is busy; return the processes of idle ones."""
        await asyncio.gather(*self.workers._tasks)
        return [worker._process.pid for worker in self.workers._idle]


def run(directory: Path, work: Callable[[Folds], Awaitable[None]]) -> None:
    put(directory, 0, as_lines(RECORDED[:50]))

    async def run_and_close() -> None:
        folds = Folds(directory)
        try:
            await work(folds)
        finally:
            await folds.engine.close()

    asyncio.run(run_and_close())


def test_folds_share_a_process(tmp_path: Path) -> None:
    async def work(folds: Folds) -> None:
        first = await folds.fold()
        pids = await folds.idle_pids()
        second = await folds.fold()
        assert await folds.idle_pids() == pids
        assert len(pids) == 1
        assert (first.generation, second.generation) == (1, 2)
        assert first.events == second.events == 50
        await folds.engine.close()
        assert not running(pids[0])

    run(tmp_path, work)


def test_warnings_of_a_fold_are_logged_with_its_session(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(folds: Folds) -> None:
        first = await folds.fold()
        pids = await folds.idle_pids()
        (tmp_path / Layout().index_file_key(REF, first.build, KEYS, 0)).write_bytes(b"damaged")
        await asyncio.to_thread(put, tmp_path, 1, as_lines(RECORDED[50:]))
        assert (await folds.fold(fresh=False)).events == len(RECORDED)
        assert await folds.idle_pids() == pids

    run(tmp_path, work)
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert record.getMessage() == "index process: files of the index are damaged, rebuilding them"
    assert (vars(record)["session"], KEYS in vars(record)["reason"]) == (REF.path, True)


def test_process_that_was_killed_while_idle_is_replaced(tmp_path: Path) -> None:
    async def work(folds: Folds) -> None:
        await folds.fold()
        (pid,) = await folds.idle_pids()
        os.kill(pid, signal.SIGKILL)
        await folds.workers._idle[0]._process.wait()
        assert (await folds.fold()).generation == 2

    run(tmp_path, work)


def test_process_ends_after_a_large_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_workers, "_MAX_REUSE_BYTES", 10)

    async def work(folds: Folds) -> None:
        await folds.fold()
        assert await folds.idle_pids() == []

    run(tmp_path, work)


def test_warm_process_waits_before_the_first_fold_and_is_replaced_after_a_large_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold_workers, "_MAX_REUSE_BYTES", 10)

    async def work(folds: Folds) -> None:
        folds.workers.keep_warm(delay_s=0)
        (first,) = await folds.idle_pids()
        await folds.fold()
        await folds.idle_pids()
        (second,) = await folds.idle_pids()
        assert first != second
        assert not running(first)

    run(tmp_path, work)


def test_outage_is_raised_as_the_error_of_the_store_and_ends_the_process(tmp_path: Path) -> None:
    async def work(folds: Folds) -> None:
        settings = settings_for(tmp_path)
        sources = await list_sources(open_store(settings), Layout(), REF)
        object_path = tmp_path / sources[0].key
        object_path.unlink()
        object_path.mkdir()
        (object_path / "loop").symlink_to("loop")
        broken = [msgspec.structs.replace(sources[0], key=f"{sources[0].key}/loop")]
        with tempfile.TemporaryDirectory() as scratch:
            job = FoldJob(msgspec.to_builtins(settings), REF, END, scratch, fresh=True, sources=broken)
            with pytest.raises(StoreUnavailable, match="symbolic link"):
                await folds.engine.fold(job, lambda report: None)
        assert await folds.idle_pids() == []

    run(tmp_path, work)


def test_killed_process_fails_its_fold(tmp_path: Path) -> None:
    async def work(folds: Folds) -> None:
        await folds.fold()
        (pid,) = await folds.idle_pids()
        with pytest.raises(IndexFailed):
            await folds.fold(lambda report: os.kill(pid, signal.SIGKILL))
        assert await folds.idle_pids() == []

    run(tmp_path, work)


def test_cancelled_fold_ends_its_process(tmp_path: Path) -> None:
    async def work(folds: Folds) -> None:
        await folds.fold()
        (pid,) = await folds.idle_pids()
        started = asyncio.Event()
        folding = asyncio.create_task(folds.fold(lambda report: started.set()))
        await started.wait()
        folding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await folding
        assert not running(pid)

    run(tmp_path, work)
