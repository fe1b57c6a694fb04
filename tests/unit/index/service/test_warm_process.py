"""A process serves small jobs one after the other, and ends after a large or failed one."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rayhistory.index.service.warm_process import ProcessFailed, WarmProcess

ECHO = """
import os, sys
for line in sys.stdin.buffer:
    if line == b"fail\\n":
        sys.exit("first line\\nlast line")
    sys.stdout.write(f"{os.getpid()} {line.decode()}")
    sys.stdout.flush()
"""


@pytest.fixture(autouse=True)
def echo_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "echo_jobs.py").write_text(ECHO)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def run(work: Callable[[WarmProcess], Awaitable[None]]) -> None:
    async def main() -> None:
        processes = WarmProcess("echo_jobs")
        try:
            await work(processes)
        finally:
            await processes.close()

    asyncio.run(main())


async def pid_of(processes: WarmProcess, *, reuse: bool) -> int:
    pid, job = (await processes.run(b"job", reuse=reuse)).split()
    assert job == b"job"
    return int(pid)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_process_of_a_small_job_serves_the_next_one() -> None:
    async def work(processes: WarmProcess) -> None:
        assert await pid_of(processes, reuse=True) == await pid_of(processes, reuse=True)

    run(work)


def test_process_of_a_large_job_ends_and_another_one_is_waiting() -> None:
    async def work(processes: WarmProcess) -> None:
        first = await pid_of(processes, reuse=False)
        assert not is_running(first)
        await asyncio.gather(*processes._tasks)
        assert processes._spare
        assert await pid_of(processes, reuse=True) != first

    run(work)


def test_concurrent_jobs_have_a_process_each_and_one_is_kept() -> None:
    async def work(processes: WarmProcess) -> None:
        first, second = await asyncio.gather(pid_of(processes, reuse=True), pid_of(processes, reuse=True))
        assert first != second
        assert [is_running(first), is_running(second)].count(True) == 1

    run(work)


def test_failure_has_the_exit_status_and_the_last_line_of_the_error_output() -> None:
    async def work(processes: WarmProcess) -> None:
        with pytest.raises(ProcessFailed, match=r"^last line$") as failure:
            await processes.run(b"fail", reuse=True)
        assert failure.value.exit_status == 1
        await pid_of(processes, reuse=True)

    run(work)


def test_cancelled_job_ends_its_process() -> None:
    async def work(processes: WarmProcess) -> None:
        first = await pid_of(processes, reuse=True)
        task = asyncio.create_task(pid_of(processes, reuse=True))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not is_running(first)

    run(work)
