"""The test runner: a test that passes only alone fails the run unless it is listed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))

from run_tests import memory_directory

PASSING = "def test_passing():\n    pass\n"
FAILING = "def test_failing():\n    assert False\n"
FLAKY = """\
from pathlib import Path

def test_flaky():
    marker = Path(__file__).with_name("ran")
    if not marker.exists():
        marker.touch()
        assert False
"""


def run(directory: Path, *arguments: str, **files: str) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (directory / f"{name}.py").write_text(text)
    (directory / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, str(ROOT / "tools/run_tests.py"), "--flaky", "flaky.txt", *arguments]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # importing plugins takes longer than the tests
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def test_passing_run_succeeds(tmp_path: Path) -> None:
    assert run(tmp_path, test_a=PASSING).returncode == 0


def test_failure_is_run_again_and_fails_the_run(tmp_path: Path) -> None:
    result = run(tmp_path, test_a=PASSING, test_b=FAILING)
    assert result.returncode == 1
    assert "FAILED TWICE test_b.py::test_failing" in result.stdout
    assert "FLAKY" not in result.stdout


@pytest.mark.parametrize("distribution", [[], ["-p", "xdist", "--numprocesses", "2"]])
def test_unlisted_flaky_test_is_named_and_fails_the_run(tmp_path: Path, distribution: list[str]) -> None:
    result = run(tmp_path, *distribution, test_a=PASSING, test_b=FLAKY)
    assert result.returncode == 1
    assert "FLAKY test_b.py::test_flaky (not listed in tests/flaky.txt)" in result.stdout
    assert "FAILED TWICE" not in result.stdout


def test_listed_flaky_test_is_named_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "flaky.txt").write_text("# known\ntest_b.py::test_flaky  # waits for the clock\n")
    result = run(tmp_path, test_b=FLAKY)
    assert result.returncode == 0
    assert "FLAKY test_b.py::test_flaky (waits for the clock)" in result.stdout


def test_listed_flaky_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "flaky.txt").write_text("test_b.py::test_failing  # sometimes\n")
    assert run(tmp_path, test_b=FAILING).returncode == 1


def test_listed_test_needs_a_reason(tmp_path: Path) -> None:
    (tmp_path / "flaky.txt").write_text("test_b.py::test_flaky\n")
    result = run(tmp_path, test_b=FLAKY)
    assert result.returncode == 2
    assert result.stderr == "run_tests.py: flaky.txt:1: give a reason: <test id>  # <reason>\n"


def test_module_that_cannot_be_imported_fails_the_run(tmp_path: Path) -> None:
    result = run(tmp_path, test_a=PASSING, test_b="import no_such_module\n")
    assert result.returncode not in {0, 5}


def test_many_failures_are_not_run_again(tmp_path: Path) -> None:
    many = "".join(f"def test_{n}():\n    assert False\n" for n in range(26))
    result = run(tmp_path, test_a=many)
    assert result.returncode == 1
    assert "more than the 25 that are run again" in result.stdout


ENDLESS = """\
import tempfile, time
from pathlib import Path

def test_endless():
    Path("directory").write_text(tempfile.gettempdir())
    time.sleep(600)
"""


def test_terminated_run_leaves_no_files(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(ENDLESS)
    with subprocess.Popen([sys.executable, str(ROOT / "tools/run_tests.py")], cwd=tmp_path) as process:
        while not (written := tmp_path / "directory").exists() or not written.read_text():
            assert process.poll() is None
            time.sleep(0.05)
        assert (temporary := Path(written.read_text())).is_dir()
        process.send_signal(signal.SIGTERM)
    assert not temporary.exists()


def test_files_are_in_memory_only_if_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    assert memory_directory(tmp_path, min_free_bytes=1) == tmp_path
    assert memory_directory(tmp_path, min_free_bytes=1 << 60) is None
    assert memory_directory(tmp_path / "missing", min_free_bytes=1) is None
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    assert memory_directory(tmp_path, min_free_bytes=1) is None


def test_the_list_of_flaky_tests_is_empty() -> None:
    lines = (ROOT / "tests/flaky.txt").read_text().splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == []
