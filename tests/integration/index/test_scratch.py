"""Scratch directories and children do not outlive the process that made them, and others leave a living one alone."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rayhistory.index.scratch import scratch_directory
from recorded_sample import REF, keep_sample, settings_for

HOLDER = """
import sys, time
from pathlib import Path
from rayhistory.index.scratch import scratch_directory
with scratch_directory(Path(sys.argv[1])) as made:
    (made / "spilled").write_text("x")
    print(made, flush=True)
    time.sleep(600)
"""

PARENT = """
import asyncio, sys
from rayhistory.index.child import child_process
async def main():
    async with child_process("rayhistory.index.fold") as process:
        print(process.pid, flush=True)
        await process.wait()
asyncio.run(main())
"""


def started(code: str, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    return process, process.stdout.readline().strip()


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout
    process.stdout.close()


def test_it_is_gone_afterwards(tmp_path: Path) -> None:
    with scratch_directory(tmp_path / "scratch") as made:
        (made / "folder").mkdir()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    process, left = started(HOLDER, str(tmp_path))
    try:
        with scratch_directory(tmp_path):
            assert Path(left, "spilled").exists(), "its process lives"
    finally:
        killed(process)
    assert Path(left).exists()
    with scratch_directory(tmp_path) as made:
        assert not Path(left).exists()
        assert {path.name for path in tmp_path.iterdir()} == {made.name, f"{made.name}.lock"}


def test_a_fold_does_not_outlive_a_killed_server() -> None:
    process, pid = started(PARENT)
    child = int(pid)
    time.sleep(0.5)  # until it has said that it wants to end with its parent
    os.kill(child, 0)
    killed(process)
    deadline = time.monotonic() + 30
    while _is_running(child):
        assert time.monotonic() < deadline, os.kill(child, signal.SIGKILL)
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="process namespaces are Linux's")
def test_the_first_process_of_a_container_can_fold_and_look_at_moments(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    keep_sample(settings)
    first = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*first, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system allows no namespaces")
    environment = os.environ | {"RAYHISTORY_CACHE_DIR": str(tmp_path / "cache")}
    for session in (REF.path, f"{REF.path}@{1794770370000}"):
        command = [Path(sys.executable).with_name("rayhistory"), "jobs", session, "--json"]
        done = subprocess.run(
            [*first, *command, "--store", settings.local_storage_dir], env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "job_id" in done.stdout


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False
