"""Scratch directories and child processes do not outlive their process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rayhistory.index.scratch import scratch_directory
from support.recorded_sample import REF, settings_for, store_sample

HOLDER = """
import sys, time
from pathlib import Path
from rayhistory.index.scratch import scratch_directory
with scratch_directory(Path(sys.argv[1])) as directory:
    (directory / "spilled").write_text("x")
    print(directory, flush=True)
    time.sleep(600)
"""

PARENT = """
import asyncio, sys
from rayhistory.index.child_process import child_process
async def main():
    async with child_process("rayhistory.index.fold.fold_process") as process:
        print(process.pid, flush=True)
        await process.wait()
asyncio.run(main())
"""


def start(code: str, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    return process, process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout
    process.stdout.close()


def test_directory_is_removed_afterwards(tmp_path: Path) -> None:
    with scratch_directory(tmp_path / "scratch") as directory:
        (directory / "folder").mkdir()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_directory_of_a_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    process, abandoned = start(HOLDER, str(tmp_path))
    try:
        with scratch_directory(tmp_path):
            assert Path(abandoned, "spilled").exists(), "its process is running"
    finally:
        kill(process)
    assert Path(abandoned).exists()
    with scratch_directory(tmp_path) as directory:
        assert not Path(abandoned).exists()
        assert {path.name for path in tmp_path.iterdir()} == {directory.name, f"{directory.name}.lock"}


def test_fold_does_not_outlive_a_killed_server() -> None:
    process, pid = start(PARENT)
    child = int(pid)
    time.sleep(0.5)  # until it has called end_with_parent
    os.kill(child, 0)
    kill(process)
    deadline = time.monotonic() + 30
    while _is_running(child):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            pytest.fail("the fold outlived its server")
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="needs process namespaces")
def test_first_process_of_a_container_can_index_and_serve_as_of(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    store_sample(settings)
    as_first_process = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*as_first_process, "true"], check=False, capture_output=True).returncode:
        pytest.skip("process namespaces are not allowed here")
    environment = os.environ | {"RAYHISTORY_CACHE_DIR": str(tmp_path / "cache")}
    for session in (REF.path, f"{REF.path}@{1794770370000}"):
        command: list[str | Path] = [Path(sys.executable).with_name("rayhistory"), "jobs", session, "--json"]
        done = subprocess.run(
            [*as_first_process, *command, "--store", settings.local_storage_dir],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "job_id" in done.stdout


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False
