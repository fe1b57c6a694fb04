"""`rayhistory run`: the cluster's default name, and calls that are rejected before Ray starts."""

from pathlib import Path

import pytest

from rayhistory.cli.local_ray.run import check_command, name_of_command
from support.cli_call import Command


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py", "train"),
        ("python /srv/jobs/My_Job.py --epochs 3", "my-job"),
        ("python -u train.v2.py", "train.v2"),
        ("./nightly.sh", "nightly"),
        ("python -m trainer.fit --lr 1", "fit"),
        ("python train.py -m resnet", "train"),
        ("python -c print(1).py", "python"),
        ("/usr/bin/train --data x.csv", "train"),
        ("uv run train.py", "train"),
        ("___", "local"),
    ],
)
def test_cluster_is_named_after_the_script(command: str, name: str) -> None:
    assert name_of_command(command.split()) == name


@pytest.mark.parametrize("command", ["python x.py", "RATE=2 sh x.sh", "exit 3", "ray --version", "A=1"])
def test_existing_command_is_accepted(command: str) -> None:
    """Also a builtin of the shell, and a program beside `ray`."""
    check_command(command.split())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "no command given: use rayhistory run -- python my_job.py"),
        (("--",), "no command given"),
        (("--name", "My_Job", "--", "true"), "'My_Job': use lower-case letters"),
        (("--", "pythn", "x.py"), "no such command: pythn"),
        (("--", "RATE=2", "./no-such.sh"), "no such command: ./no-such.sh"),
        (("--num-cpus", "many", "--", "true"), "invalid int value: 'many'"),
    ],
)
def test_wrong_call_is_one_line(
    argv: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert message in Command(tmp_path, monkeypatch, capfd).bad("run", *argv)
