"""Exit codes and one-line errors of the three programs."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rayhistory.cli.setup.doctor import run_checks
from rayhistory.ray_env import system_config
from rayhistory.settings import SERVER, resolve

BIN = Path(sys.executable).parent


def call(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RAYHISTORY_", "STORAGE_"))}
    return subprocess.run(
        [BIN / argv[0], *argv[1:]], env=clean | environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("argv", "environment", "error"),
    [
        (["rayhistory", "run"], {}, "rayhistory: no command given: use rayhistory run -- python my_job.py"),
        (["rayhistory", "fly"], {}, "rayhistory: unknown command 'fly'"),
        (
            ["rayhistory", "serve", "--prot", "1"],
            {},
            "rayhistory serve: unknown flag or argument: --prot: did you mean --port?",
        ),
        (["rayhistory", "serve", "--port", "x"], {}, "rayhistory: --port=x: use a port number"),
        (["rayhistory", "run", "--name", "A_b", "--", "ls"], {}, "argument --name: 'A_b': use lower-case"),
        (["rayhistory", "env", "--ray-version", "1.2"], {}, "rayhistory: "),
        (["rayhistory", "sessions"], {"LOCAL_STORAGE_DIR": "/nowhere"}, "STORAGE_DIR=/nowhere: no such directory"),
        (["rayhistory", "sessions", "--store", "file:///nowhere"], {}, "--store=file:///nowhere: no such directory"),
        (
            ["rayhistory", "run", "--", "ls"],
            {"LOCAL_STORAGE_DIR": "/proc/x"},
            "LOCAL_STORAGE_DIR=/proc/x: cannot create the directory",
        ),
        (["historyserver"], {"STORAGE_BACKEND": "tape"}, "historyserver: unknown storage backend 'tape'"),
        (["historyserver", "--nope"], {}, "historyserver: unknown flag or argument: --nope"),
        (
            ["historyserver", "--prot", "9"],
            {},
            "historyserver: unknown flag or argument: --prot 9: did you mean --port?",
        ),
        (["collector", "--rol", "Head", "--nope"], {}, "argument: --rol Head --nope: did you mean --role?"),
        (["collector", "--role", "king"], {}, "collector: --role=king: use Head or Worker"),
        (["collector"], {"RAY_CLUSTER_NAME": "no_underscores"}, "collector: RAY_CLUSTER_NAME=no_underscores: use"),
        (["collector"], {"STORAGE_BACKEND": "tape"}, "collector: unknown storage backend 'tape'"),
    ],
)
def test_wrong_call_exits_with_2_and_one_line(argv: list[str], environment: dict[str, str], error: str) -> None:
    done = call(*argv, **environment)
    assert done.returncode == 2
    assert error in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_every_program_reports_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = str(taken.getsockname()[1])
        store = {"LOCAL_STORAGE_DIR": str(tmp_path)}
        calls = (["rayhistory", "serve", "--port", port], ["historyserver", "--port", port],
                 ["collector", "--events-port", port, "--event-data-dir", str(tmp_path / "spool")])  # fmt: skip
        for argv in calls:
            done = call(*argv, **store)
            assert done.returncode == 2
            assert f"{port}" in done.stderr
            assert "in use" in done.stderr


def test_empty_store_shows_how_to_record_a_session(tmp_path: Path) -> None:
    done = call("rayhistory", "sessions", LOCAL_STORAGE_DIR=str(tmp_path))
    assert done.returncode == 0
    assert "rayhistory run -- python my_job.py" in done.stdout
    assert call("rayhistory", "sessions", "--json", LOCAL_STORAGE_DIR=str(tmp_path)).stdout.strip() == "[]"


def test_doctor_fails_for_an_unwritable_store(tmp_path: Path) -> None:
    good = call("rayhistory", "doctor", LOCAL_STORAGE_DIR=str(tmp_path))
    assert good.returncode == 0
    assert "ok    store: create objects only once" in good.stdout
    bad = call("rayhistory", "doctor", LOCAL_STORAGE_DIR="/proc/x")
    assert bad.returncode == 1
    assert "FAIL  store: LOCAL_STORAGE_DIR=/proc/x" in bad.stdout


def test_doctor_creates_no_directory(tmp_path: Path) -> None:
    mistyped, data = tmp_path / "mistyped" / "store", tmp_path / "data"
    wrong = call("rayhistory", "doctor", "--store", f"file://{mistyped}")
    assert wrong.returncode == 1
    assert f"FAIL  store: --store=file://{mistyped}: no such directory" in wrong.stdout
    as_collector = call("rayhistory", "doctor", "--as", "collector", "--store", f"file://{mistyped}")
    assert as_collector.returncode == 1
    for flags in ([], ["--as", "collector"]):  # before the first session, the default directory does not exist
        first = call("rayhistory", "doctor", *flags, XDG_DATA_HOME=str(data))
        assert first.returncode == 0
        assert f"note  store: file://{data}/rayhistory does not exist yet" in first.stdout
    assert list(tmp_path.iterdir()) == []


def test_doctor_finds_the_ray_that_a_recording_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is the one on PATH if none is installed beside Python."""
    ray, other = tmp_path / "bin/ray", tmp_path / "empty/bin"
    ray.parent.mkdir()
    other.mkdir(parents=True)
    ray.write_text("#!/bin/sh\necho 'ray, version 2.52.1'\n")
    ray.chmod(0o755)
    for path, expected in ((f"{ray.parent}", "Ray 2.52.1 is installed"), (f"{other}", "no `ray` command beside")):
        monkeypatch.setenv("PATH", path)
        monkeypatch.setattr(sys, "executable", str(other / "python"))
        results = asyncio.run(run_checks(resolve(SERVER, {}, {"LOCAL_STORAGE_DIR": str(tmp_path)})[0]))
        assert any(expected in result.text for result in results), results


def test_env_depends_on_the_ray_version() -> None:
    """Ray before 2.54 does not know `ALL`; both names of the variable are printed."""
    new, old = call("rayhistory", "env", "--ray-version", "2.60"), call("rayhistory", "env", "--ray-version", "2.53")
    name = "AGENT_EXPOSABLE_EVENT_TYPES="
    assert f"{name}ALL" in new.stdout
    assert "PUBLISHER_HTTP_ENDPOINT_EXPOSABLE_EVENT_TYPES=ALL" in new.stdout
    assert f"{name}TASK_DEFINITION_EVENT,TASK_LIFECYCLE_EVENT" in old.stdout
    assert "TASK_PROFILE_EVENT" in old.stdout
    assert "--system-config=" in new.stdout


def test_env_prints_the_system_config_that_reaches_every_driver() -> None:
    printed = call("rayhistory", "env", "--ray-version", "2.60", "--system-config").stdout
    assert json.loads(printed) == system_config("2.60.0")
    script = call("rayhistory", "env", "--ray-version", "2.60").stdout
    assert script.index("ray start --head --system-config=") < script.index("export ")


def test_doctor_names_what_a_driver_without_variables_lacks_and_the_remedy(tmp_path: Path) -> None:
    output = call("rayhistory", "doctor", LOCAL_STORAGE_DIR=str(tmp_path)).stdout
    assert "its tasks have no name or error" in output
    assert 'ray start --head --system-config="$(rayhistory env --system-config)"' in output


@pytest.mark.parametrize("program", ["collector", "historyserver", "rayhistory"])
def test_help_exits_with_0(program: str) -> None:
    done = call(program, "--help")
    assert done.returncode == 0
    assert "usage:" in done.stdout
