"""LocalRay: a private Ray cluster is started, used and stopped."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rayhistory.cli.local_ray import subreaper
from rayhistory.cli.local_ray.local_ray import LocalRay
from rayhistory.cli.local_ray.ports import ReservedPorts
from rayhistory.errors import RayHistoryError, UsageError

# Nothing listens there: Ray buffers its events and retries.
EVENTS_URL = "http://127.0.0.1:9/v1/events"


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def ray(runner: asyncio.Runner) -> Iterator[LocalRay]:
    ray = LocalRay(EVENTS_URL, num_cpus=2)
    runner.run(ray.__aenter__())
    try:
        runner.run(ray.ready())
        yield ray
    finally:
        runner.run(ray.__aexit__(None, None, None))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def root_pid(ray: LocalRay) -> int:
    """Return the root of the tree of Ray's processes."""
    assert ray._head is not None
    return ray._head.pid


async def output_of(ray: LocalRay, submission_id: str) -> str:
    return "".join([chunk async for chunk in ray.follow_output(submission_id)])


def test_ready_cluster_has_address_version_and_session(ray: LocalRay) -> None:
    assert ray.dashboard_url.startswith("http://127.0.0.1:")
    assert ray.version[:2] == "2."
    assert (ray.session_dir / "logs").is_dir()
    assert (ray.temp_dir / "session_latest").resolve() == ray.session_dir.resolve()


def test_all_listening_sockets_are_bound_to_loopback(ray: LocalRay) -> None:
    inodes = set()
    for pid in subreaper.descendants(root_pid(ray)):
        for handle in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(str(handle.readlink()).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    listening = [
        fields[1].split(":")[0]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for fields in map(str.split, Path(table).read_text().splitlines()[1:])
        if fields[3] == "0A" and fields[9] in inodes
    ]
    assert listening
    assert set(listening) <= {"0100007F", "0000000000000000FFFF00000100007F"}


def test_job_runs_in_the_current_directory_and_its_output_is_followed(ray: LocalRay, runner: asyncio.Runner) -> None:
    """The command has the given environment variables and Python."""

    async def scenario() -> None:
        script = 'echo "in $(pwd)"; echo "dear $WHO" >&2; python -c "import ray; print(ray.__version__)"'
        job = await ray.submit(["sh", "-c", script], "greeting", {"WHO": "reader"}, {"team": "docs"})
        assert job == "greeting"
        lines = (await output_of(ray, job)).splitlines()
        details = await ray.wait(job)
        expected = [f"in {Path.cwd()}", "dear reader", ray.version]
        assert [line for line in lines if line in expected] == expected  # Ray writes lines of its own between them
        assert (details["status"], details["driver_exit_code"]) == ("SUCCEEDED", 0)
        assert details["metadata"] == {"team": "docs"}

    runner.run(scenario())


def test_details_of_a_failed_job_have_its_exit_code(ray: LocalRay, runner: asyncio.Runner) -> None:

    async def scenario() -> None:
        details = await ray.wait(await ray.submit(["sh", "-c", "exit 7"]))
        assert (details["status"], details["driver_exit_code"]) == ("FAILED", 7)

    runner.run(scenario())


def test_running_job_can_be_stopped(ray: LocalRay, runner: asyncio.Runner) -> None:

    async def scenario() -> None:
        job = await ray.submit(["sleep", "1000"])
        await ray.stop_job(job)
        assert (await ray.wait(job))["status"] == "STOPPED"

    runner.run(scenario())


def test_unknown_job_is_an_error_with_the_text_of_ray(ray: LocalRay, runner: asyncio.Runner) -> None:
    with pytest.raises(RayHistoryError, match="no-such-job does not exist"):
        runner.run(ray.wait("no-such-job"))


def test_second_cluster_runs_beside_the_first_and_leaves_nothing_behind(ray: LocalRay, runner: asyncio.Runner) -> None:
    """Stopping it leaves none of its processes and does not affect the other."""

    async def scenario() -> None:
        async with LocalRay(EVENTS_URL, num_cpus=1) as second:
            await second.ready()
            assert second.session_name != ray.session_name
            assert second.dashboard_url != ray.dashboard_url

            escaped = second.temp_dir / "escaped"
            daemon = f"setsid sh -c 'echo $$ > {escaped}.tmp; mv {escaped}.tmp {escaped}; exec sleep 1000' &"
            await second.wait(await second.submit(["sh", "-c", daemon]))
            assert await asyncio.to_thread(eventually, escaped.exists)
            root = root_pid(second)
            tree = [root, *subreaper.descendants(root)]
            assert int(escaped.read_text()) in tree

            await second.stop()
            await second.stop()
            assert [pid for pid in tree if alive(pid)] == []
            assert (second.session_dir / "logs" / "raylet.out").exists()
            second.cleanup()
            second.cleanup()
            assert not second.temp_dir.exists()
            with pytest.raises(RayHistoryError, match="not running"):
                await second.submit(["true"])

            assert (await ray.wait(await ray.submit(["true"])))["status"] == "SUCCEEDED"

    runner.run(scenario())


def test_failure_to_start_shows_the_output_of_ray(tmp_path: Path) -> None:
    command = tmp_path / "ray"
    command.write_text("#!/bin/sh\n[ $1 = --version ] && echo ray, version 2.60.0 || echo no luck; exit 1\n")
    command.chmod(0o755)

    async def scenario() -> None:
        async with LocalRay(EVENTS_URL, ray_command=command) as ray:
            with pytest.raises(RayHistoryError, match=r"2\.60\.0 exited while starting:\nno luck"):
                await ray.ready()
        assert not ray.temp_dir.exists()

    asyncio.run(scenario())


def test_missing_ray_command_is_a_usage_error_that_names_the_package(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ray\[default\]"):
        asyncio.run(LocalRay(EVENTS_URL, ray_command=tmp_path / "ray").start())


def test_directory_too_long_for_sockets_is_refused_before_ray_starts() -> None:
    with pytest.raises(UsageError, match="at most 43 characters"):
        asyncio.run(LocalRay(EVENTS_URL, temp_dir=Path("/tmp") / ("long" * 20)).start())


def test_reserved_ports_are_unique_and_free_after_release() -> None:
    first, second = ReservedPorts(["a", "b"]), ReservedPorts(["a", "b"])
    assert len({first["a"], first["b"], second["a"], second["b"]}) == 4
    first.release()
    second.release()
    assert not first.any_taken()


def test_subreaper_ends_the_process_tree_when_its_parent_is_killed(tmp_path: Path) -> None:
    """Detached processes end too."""
    pids = tmp_path / "pids"
    command = f"trap '' TERM; setsid sh -c 'echo $$ >> {pids}; exec sleep 1000' & echo $$ >> {pids}; wait"
    script = (
        "import subprocess, sys, time;"
        "subprocess.Popen([sys.executable, *sys.argv[1:]], stdin=subprocess.PIPE, start_new_session=True);"
        "time.sleep(1000)"
    )
    argv = ["-I", "-S", subreaper.__file__, "0.2", "sh", "-c", command]
    parent = subprocess.Popen([sys.executable, "-c", script, *argv])
    assert eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    started = [int(pid) for pid in pids.read_text().split()]
    assert all(map(alive, started))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert eventually(lambda: not any(map(alive, started)))
