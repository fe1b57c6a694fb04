"""Searches in the logs of a recorded Ray session find the lines that ripgrep finds in its unpacked files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from recorded.recorder import Recording
from support.cli_call import Command
from support.ripgrep import ripgrep

RAYHISTORY = Path(sys.executable).with_name("rayhistory")


@pytest.fixture(scope="module")
def unpacked(recorded: Recording, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log files of each node, as files."""
    target = tmp_path_factory.mktemp("unpacked")
    stores = ["--store", f"file://{recorded.store}", "--to", f"file://{target}"]
    copy = [str(RAYHISTORY), "copy", recorded.ref.path, *stores, "--log-layout", "plain"]
    subprocess.run(copy, check=True, capture_output=True)
    (logs,) = target.glob(f"cluster-history/**/{recorded.ref.session}/*/logs")
    return logs


@pytest.fixture
def command(
    recorded: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    command = Command(tmp_path, monkeypatch, capfd)
    monkeypatch.setenv("LOCAL_STORAGE_DIR", str(recorded.store))
    return command


@pytest.mark.parametrize(
    ("pattern", "flags"),
    [
        ("error", ["-i"]),
        ("error", []),
        ("err", ["-w"]),
        ("[", ["-F"]),
        ("nowhere-in-any-log", []),
        (r"^\[\d{4}-", []),
        (r"\bpid=\d+", []),
        (r"(INFO|WARNING) .*raylet", []),
        (r"[0-9a-f]{56}", []),
        (r"\.$", []),
        ("Ä|✓|Traceback", []),
        ("ray::[A-Za-z_.]+", []),
    ],
)
def test_search_finds_what_ripgrep_finds(
    command: Command, recorded: Recording, unpacked: Path, pattern: str, flags: list[str]
) -> None:
    expected = {line[:3] for line in ripgrep(unpacked, pattern, *flags)}
    done = command("grep", *flags, "--json", pattern, recorded.ref.path)
    assert done.code == (0 if expected else 1), done.err
    hits = [json.loads(line) for line in done.out.splitlines()]
    found = {(hit["file"], hit["line"], hit["offset"]) for hit in hits}
    assert len(hits) == len(found)
    assert found == expected
