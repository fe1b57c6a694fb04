"""`rayhistory grep` and `rayhistory logs --grep`: output and exit codes as of ripgrep."""

import json
from pathlib import Path

import pytest

from support.cli_call import Command
from support.recorded_sample import NODE, REF, settings_for, store_indexed_sample

FILES = {
    "raylet.out": b"2026-11-15 19:18:08,000 one\n2026-11-15 19:18:09,000 Error two\n2026-11-15 19:18:10,000 three\n",
    "old/worker.err": b"2026-11-15 19:18:20,000 error: an \x1b[31merror\x1b[0m\n",
}
SHORT = NODE[:8]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    store_indexed_sample(settings_for(tmp_path), FILES)
    return Command(tmp_path, monkeypatch, capfd)


def test_lines_are_printed_with_file_and_number(command: Command) -> None:
    assert command.good("grep", "-i", "error").splitlines() == [
        f"{SHORT}/raylet.out:2:2026-11-15 19:18:09,000 Error two",
        f"{SHORT}/old/worker.err:1:2026-11-15 19:18:20,000 error: an error",
    ]


def test_exit_codes_are_those_of_grep(command: Command) -> None:
    assert command("grep", "nowhere").code == 1
    assert command("grep", "(").code == 2
    assert command("grep", "x", "--context", "30").code == 2
    assert command("grep", "-l", "three").code == 0


def test_context_is_printed_around_lines(command: Command) -> None:
    assert command.good("grep", "-C1", "Error two").splitlines() == [
        f"{SHORT}/raylet.out-1-2026-11-15 19:18:08,000 one",
        f"{SHORT}/raylet.out:2:2026-11-15 19:18:09,000 Error two",
        f"{SHORT}/raylet.out-3-2026-11-15 19:18:10,000 three",
    ]


def test_files_counts_and_json(command: Command) -> None:
    assert command.good("grep", "-l", "-i", "error").splitlines() == [f"{SHORT}/old/worker.err", f"{SHORT}/raylet.out"]
    assert command.good("grep", "-c", "2026").splitlines() == [f"{SHORT}/old/worker.err:1", f"{SHORT}/raylet.out:3"]
    hit = json.loads(command.good("grep", "--json", "-F", "two"))
    assert (hit["file"], hit["line"], hit["node_id"]) == ("raylet.out", 2, NODE)


def test_counts_of_many_lines_and_files_are_complete(tmp_path: Path, command: Command) -> None:
    """The server counts up to 100 files, and a page has 1,000 lines."""
    store_indexed_sample(settings_for(tmp_path), {"many.out": b"a zebra\n" * 2500})
    assert command.good("grep", "-c", "zebra") == f"{SHORT}/many.out:2500\n"
    store_indexed_sample(settings_for(tmp_path), {f"many-{number}.out": b"a zebra\n" for number in range(105)})
    assert len(command.good("grep", "-l", "zebra").splitlines()) == 106
    assert command.good("grep", "-c", "zebra").count(":1\n") == 105


def test_flags_and_filters_narrow_the_search(command: Command) -> None:
    assert command("grep", "-w", "err").code == 1
    assert command("grep", "-F", "t.o").code == 1
    assert command.good("grep", "-c", "error", "-g", "*.err") == f"{SHORT}/old/worker.err:1\n"
    assert command.good("grep", "-m1", "2026").count("\n") == 1
    assert "three" in command.good("grep", "-m1", "--newest-first", "-g", "raylet.out", "2026")
    assert command.good("grep", "2026", "--from", "2026-11-15T19:18:20Z").count("\n") == 1


def test_matches_are_coloured_on_request(command: Command) -> None:
    assert "\x1b[1;31mtwo\x1b[0m" in command.good("grep", "--color=always", "two")


def test_all_sessions_are_searched(command: Command) -> None:
    path = f"{REF.namespace}/{REF.cluster}/{REF.session}/{SHORT}/raylet.out"
    assert command.good("grep", "--all", "-l", "three") == f"{path}\n"
    assert command("grep", "--all", "--since", "1h", "three").code == 1
    assert command("grep", "--since", "1h", "three").code == 2


def test_logs_without_a_file_searches_all_files(command: Command) -> None:
    assert command.good("logs", "--grep", "three|an") == command.good("grep", "three|an")
    assert command.good("logs", "--list", "*.err", "--grep", "2026").count("\n") == 1
