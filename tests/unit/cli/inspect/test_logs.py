"""`rayhistory logs --task` for a task whose worker reported no place of its output."""

from pathlib import Path

import pytest

from support.cli_call import Command
from support.recorded_sample import REF, settings_for, store_indexed_sample

FAILED_TASK = "32d950ec0ccf9d2affffffffffffffffffffffff01000000"
"""The task `boom`: its driver reported the failure and the worker, and its worker reported nothing."""
WORKER = "worker-a517d9614243c4b0cd6df9cd142898f4a49e6618b938c38a92548e82-01000000-16293"
OUTPUT = b":job_id:01000000\n:task_name:ok\n:task_name:boom\nabout to fail\n"
TASK_OF_UNKNOWN_WORKER = "37ae34bb096fa216ffffffffffffffffffffffff01000000"
"""A task `ok`, of which no event names the node and the worker."""


@pytest.fixture
def rayhistory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, monkeypatch, capfd)


def test_task_without_a_log_range_shows_the_log_of_its_worker(rayhistory: Command, tmp_path: Path) -> None:
    store_indexed_sample(settings_for(tmp_path), {f"{WORKER}.out": OUTPUT, f"{WORKER}.err": b"a warning\n"})
    done = rayhistory("logs", REF.path, "--task", FAILED_TASK)
    assert (done.code, done.out) == (0, OUTPUT.decode()), done.err
    assert done.err == (
        f"rayhistory: Ray did not record which output this task wrote, showing the whole log {WORKER}.out of its "
        "worker: the output follows a line ':task_name:boom'\n"
    )
    assert rayhistory.good("logs", REF.path, "--task", FAILED_TASK, "--err") == "a warning\n"
    assert rayhistory.good("logs", REF.path, "--task", "boom", "--attempt", "0", "-n", "1") == "about to fail\n"


@pytest.mark.parametrize("folder", ["", "old/"])
def test_log_of_the_worker_may_be_an_old_log(rayhistory: Command, tmp_path: Path, folder: str) -> None:
    store_indexed_sample(settings_for(tmp_path), {f"{folder}{WORKER}.out": OUTPUT})
    assert rayhistory.good("logs", REF.path, "--task", "boom") == OUTPUT.decode()


@pytest.mark.parametrize(("task", "name"), [(FAILED_TASK, "boom"), (TASK_OF_UNKNOWN_WORKER, "ok")])
def test_task_without_any_log_gets_commands_that_work(
    rayhistory: Command, tmp_path: Path, task: str, name: str
) -> None:
    other = f"worker-{'0' * 56}-01000000-1.out"
    store_indexed_sample(settings_for(tmp_path), {other: f":task_name:{name}\n".encode()})
    error = rayhistory.bad("logs", REF.path, "--task", task)
    commands = [f"grep -F :task_name:{name} {REF.path}", f"logs {REF.path} --list", f"gaps {REF.path}"]
    assert error == (
        f"rayhistory: the log of task {task} was not found, because events or logs of its worker are missing. "
        f"Try {', '.join(f'rayhistory {command}' for command in commands[:2])} or rayhistory {commands[2]}"
    )
    for command in commands:
        rayhistory.good(*command.split())
