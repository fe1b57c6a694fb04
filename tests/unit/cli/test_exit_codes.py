"""Exit codes: 1 for a failure, 2 for a wrong call."""

from pathlib import Path

import pytest

from rayhistory.cli.main import COMMANDS
from support.cli_call import Command
from support.recorded_sample import settings_for, store_indexed_sample

FULL_NAME, CLUSTER = "default/demo/session_2020-01-01_00-00-00_000000_1", "nobody/nothing"

CALLS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("tasks", "actors", "jobs", "nodes", "workers", "placement-groups"), ("{}",)),
    **dict.fromkeys(("summary", "logs", "diagnose", "gaps", "open", "index", "pin", "unpin"), ("{}",)),
    "grep": ("x", "{}"),
    "compare": ("{}", "{}"),
    "metrics": ("up", "{}"),
    "timeline": ("{}", "-o", "-"),
    "sql": ("select 1", "{}"),
    "export": ("{}", "--to", "/tmp/none"),
    "copy": ("{}", "--to", "file:///tmp"),
    "bundle": ("{}", "-o", "x.html"),
    "store": ("check", "{}"),
}
"""A call of each command that names a session."""
WITHOUT_SESSION = {
    "run", "demo", "env", "serve", "sessions", "import-dir", "snapshot", "retention", "mcp", "skill", "doctor",
    "notify", "dashboards", "completion", "help",
}  # fmt: skip
READ_FROM_STORE = {"index", "pin", "unpin", "copy", "store", "export"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("codes")
    store_indexed_sample(settings_for(directory), {"raylet.out": b""})
    return directory


@pytest.fixture
def rayhistory(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(directory, monkeypatch, capfd)


def test_every_command_is_covered() -> None:
    assert {command.name for command in COMMANDS} <= set(CALLS) | WITHOUT_SESSION


@pytest.mark.parametrize("command", CALLS)
@pytest.mark.parametrize("session", [FULL_NAME, FULL_NAME.rpartition("/")[2], CLUSTER, "nothing"])
def test_unknown_session_is_a_wrong_call(rayhistory: Command, command: str, session: str) -> None:
    done = rayhistory(command, *(word.format(session) for word in CALLS[command]))
    assert (done.code, len(done.err.splitlines())) == (2, 1), done.err


@pytest.mark.parametrize(
    "argv",
    [
        ("logs", "--file", "nofile"),
        ("logs", "--file", "no*"),
        ("logs", "--task", "no"),
        ("logs", "--task", "0" * 48),
        ("logs", "--actor", "no"),
        ("logs", "--actor", "0" * 32),
        ("logs", "--job", "no"),
        ("logs", "--pid", "1"),
        ("grep", "x", "--task", "no"),
        ("timeline", "-o", "-", "--job", "no"),
        ("tasks", "@2020-01-01T00:00:00Z"),
        ("tasks", "--where", "no=1"),
        ("sql", "select no"),
        ("env", "--ray-version", "no"),
    ],
    ids=" ".join,
)
def test_unknown_name_is_a_wrong_call(rayhistory: Command, argv: tuple[str, ...]) -> None:
    assert rayhistory(*argv).code == 2


@pytest.mark.parametrize("command", sorted(CALLS.keys() - READ_FROM_STORE))
def test_server_without_response_is_a_failure(rayhistory: Command, command: str) -> None:
    words = [word.format("default/demo") for word in CALLS[command]]
    done = rayhistory(command, *words, "--server", "http://127.0.0.1:1")
    assert (done.code, len(done.err.splitlines())) == (2 if command == "grep" else 1, 1), done.err
