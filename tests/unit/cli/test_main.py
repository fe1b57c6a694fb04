"""The table of commands."""

import pytest

from rayhistory.cli.main import COMMANDS, Command, _build_parser
from rayhistory.settings import setting_specs


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_help(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        _build_parser().parse_args([command.name, "--help"])
    assert end.value.code == 0
    assert f"usage: rayhistory {command.name} " in capsys.readouterr().out


def test_settings_of_commands_exist() -> None:
    names = {spec.name for spec in setting_specs()}
    assert [command.name for command in COMMANDS if not command.settings <= names] == []
