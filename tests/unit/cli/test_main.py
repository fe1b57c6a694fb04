"""The table of commands."""

import re
import shlex
import subprocess
import sys

import pytest

from rayhistory.cli.main import COMMAND_GROUPS, COMMANDS, Command, build_parser, main
from rayhistory.settings import setting_specs


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_help(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        build_parser([command.name]).parse_args([command.name, "--help"])
    assert end.value.code == 0
    assert f"usage: rayhistory {command.name} " in capsys.readouterr().out


def test_settings_of_commands_exist() -> None:
    names = {spec.name for spec in setting_specs()}
    assert [command.name for command in COMMANDS if not command.settings <= names] == []


def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["rayhistory", *argv])
    monkeypatch.setitem(sys.modules, "pandas", sys.modules.get("pandas"))  # main() skips its import
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0), *capfd.readouterr()


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (("taks",), "rayhistory: unknown command 'taks': did you mean tasks? (see rayhistory --help)"),
        (("xyzzy",), "rayhistory: unknown command 'xyzzy' (see rayhistory --help)"),
        (
            ("tasks", "--wher", "state=FAILED"),
            "rayhistory tasks: unknown flag or argument: --wher: did you mean --where? (see rayhistory tasks --help)",
        ),
        (("serve", "--prot=80"), "rayhistory serve: unknown flag or argument: --prot=80: did you mean --port?"),
        (
            ("sql", "-s", "x", "select 1"),
            "unknown flag or argument: -s: did you mean --session or --server or --since?",
        ),
        (("sessions", "-f"), "unknown flag or argument: -f: did you mean --failed?"),
        (("serve", "-por", "80"), "unknown flag or argument: -por: did you mean --port?"),
        (("gaps", "a", "--json", "b"), "rayhistory gaps: unknown flag or argument: b"),
        (("gaps", "a", "--session", "b"), "rayhistory gaps: several sessions given: a and b"),
        (("sql", "default/a", "select 1"), "the query comes before the session: use rayhistory sql QUERY SESSION"),
        (("sql", "select 1", "a", "--all"), "--all queries all sessions: omit SESSION"),
        (("gaps", "a", "b"), "rayhistory gaps: unknown flag or argument: b (see rayhistory gaps --help)"),
        (("retention", "--max-age", "1m"), "'1m': use hours, days or weeks, such as 12h, 30d or 2w"),
        (("retention", "--max-age", "90s"), "use hours, days or weeks"),
        (("retention", "--failed-max-age", "1h30m"), "use hours, days or weeks"),
        (("completion", "tcsh"), "invalid choice: 'tcsh'"),
        (("compare",), "0 sessions given, use 2 to 10: rayhistory compare SESSION SESSION…"),
        (("compare", "a"), "1 session given, use 2 to 10: rayhistory compare SESSION SESSION…"),
        (("help", "taks"), "unknown command 'taks': did you mean tasks?"),
    ],
)
def test_wrong_call_is_one_line_with_a_suggestion(
    argv: tuple[str, ...], error: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(monkeypatch, capfd, *argv)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert error in line


def test_help_lists_every_command_by_purpose(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = call(monkeypatch, capfd, "--help")
    assert code == 0
    assert [line[:-1] for line in text.splitlines() if line in {f"{title}:" for title in COMMAND_GROUPS}] == list(
        COMMAND_GROUPS
    )
    for command in COMMANDS:
        assert f"\n  {command.name} " in text


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_of_a_command_starts_with_its_own_options(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser([command.name]).parse_args([command.name, "--help"])
    text = capsys.readouterr().out
    usage, _, rest = text.partition("\n\n")
    assert len(usage.splitlines()) == 1
    assert "--store" not in usage
    if command.settings:
        assert rest.index("\noptions:") < rest.index("\nsettings:")
    assert re.findall(r"(?<![-./\w])(sql|json|csv|url|http|cpu)(?![-/:\w])", rest.replace("rayhistory sql", "")) == []


@pytest.mark.parametrize(
    ("argv", "usage"),
    [
        (("help",), "usage: rayhistory COMMAND [options]"),
        (("help", "tasks"), "usage: rayhistory tasks [options] [SESSION]"),
        (("help", "compare"), "usage: rayhistory compare [options] SESSION SESSION…"),
        (("store", "check", "--help"), "usage: rayhistory store check [options] [SESSION…]"),
        (("dashboards", "add", "--help"), "usage: rayhistory dashboards add [options] VERSION|WHEEL|DIRECTORY…"),
    ],
)
def test_usage_is_one_short_line(
    argv: tuple[str, ...], usage: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = call(monkeypatch, capfd, *argv)
    assert (code, text.splitlines()[0]) == (0, usage)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_every_command_and_its_flags(
    shell: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, script, _ = call(monkeypatch, capfd, "completion", shell)
    assert code == 0
    for command in COMMANDS:
        assert command.name in script
    assert {"where", "compact", "vanished"} <= set(re.findall(r"\w+", script))
    assert "runtime-class-name" not in script  # a spelling for compatibility


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("rayhistory", "ta"), ["tasks"]),
        (("rayhistory", "tasks", "--wh"), ["--where"]),
        (("rayhistory", "open", "--ser"), ["--server", "--serve"]),
        (("rayhistory", "store", "c"), ["check", "compact"]),
        (("rayhistory", "store", "check", "--rep"), ["--repair"]),
        (("rayhistory", "dashboards", "a"), ["add"]),
        (("rayhistory", "dashboards", "add", "--a"), ["--as"]),
        (("rayhistory", "completion", "b"), ["bash"]),
        (("rayhistory", "sessions", "--state", ""), ["running", "ended", "vanished"]),
        (("rayhistory", "sessions", "--state", "ended", "--fai"), ["--failed"]),
        (("rayhistory", "grep", "x", "--color", "al"), ["always"]),
        (("rayhistory", "help", "compa"), ["compare"]),
    ],
)
def test_bash_completes_commands_flags_and_values(
    words: tuple[str, ...], expected: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _, script, _ = call(monkeypatch, capfd, "completion", "bash")
    line = f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _rayhistory; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", script + line], capture_output=True, text=True, check=True)
    assert done.stdout.split() == expected
