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

RESTARTED_ACTOR = "52297792c799d4f52f1fb4a701000000"
FIRST_INCARNATION = "worker-5237e64ba57039f1c2747790bf54dbce772646fcbe19eb2281961873-01000000-16444"
SECOND_INCARNATION = "worker-1e88e9b1f2a340e650ab6346b26e9710901cf3358eebda264c8f8191-01000000-16526"


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


def test_headings_are_only_of_files_with_matches(rayhistory: Command, tmp_path: Path) -> None:
    store_indexed_sample(settings_for(tmp_path), {"a.err": b"x\n", "b.err": b"giving up\n", "c.err": b"giving in\n"})
    found = rayhistory.good("logs", REF.path, "--file", "*.err", "--grep", "giving")
    assert found == "==> b.err <==\ngiving up\n\n==> c.err <==\ngiving in\n"
    done = rayhistory("logs", REF.path, "--file", "*.err", "--grep", "nowhere")
    assert (done.code, done.out, done.err) == (1, "", "")
    assert rayhistory.good("logs", REF.path, "--file", "[ab].err") == "==> a.err <==\nx\n\n==> b.err <==\ngiving up\n"


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("--task", FAILED_TASK), f"task {FAILED_TASK} wrote nothing to stdout; --err shows its stderr. It failed: "),
        (("--task", FAILED_TASK, "--err"), f"task {FAILED_TASK} wrote nothing to stderr. It failed: "),
        (("--pid", "16293"), "process 16293 wrote nothing to stdout; --err shows its stderr"),
        (("--job", "sub-ok"), "job sub-ok wrote nothing"),
    ],
)
def test_empty_output_is_reported_with_the_error_of_the_task(
    rayhistory: Command, tmp_path: Path, flags: tuple[str, ...], line: str
) -> None:
    files = {f"{WORKER}.out": b"", f"{WORKER}.err": b"", "job-driver-sub-ok.log": b""}
    store_indexed_sample(settings_for(tmp_path), files)
    done = rayhistory("logs", REF.path, *flags)
    assert (done.code, done.out) == (0, "")
    assert f"rayhistory: {line}" in done.err
    if "It failed" in line:
        assert "ValueError" in done.err.splitlines()[-1]


def test_shown_incarnation_of_an_actor_is_reported(rayhistory: Command, tmp_path: Path) -> None:
    files = {f"old/{FIRST_INCARNATION}.out": b"first\n", f"{SECOND_INCARNATION}.err": b"second\n"}
    store_indexed_sample(settings_for(tmp_path), files)
    for flags, output, number in ((("--err",), "second\n", 1), ((), "first\n", 0)):
        done = rayhistory("logs", REF.path, "--actor", RESTARTED_ACTOR, *flags)
        assert (done.code, done.out) == (0, output)
        assert done.err == (
            f"rayhistory: showing incarnation {number} of the actor's incarnations 0 to 1: "
            "--incarnation selects another\n"
        )
    chosen = rayhistory("logs", REF.path, "--actor", RESTARTED_ACTOR, "--incarnation", "0")
    assert (chosen.out, chosen.err) == ("first\n", "")
    assert rayhistory("logs", REF.path, "--actor", RESTARTED_ACTOR, "--incarnation", "2").code == 2
