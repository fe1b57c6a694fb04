"""`rayhistory completion`: a script that completes commands, flags and their values, for bash, zsh or fish."""

import argparse
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from rayhistory.settings import Parser, Settings

_BASH = """\
# rayhistory completion for bash: eval "$(rayhistory completion bash)"
_rayhistory() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words= action=
  [ "$COMP_CWORD" -gt 2 ] && action=${{COMP_WORDS[2]}}
  if [ "$COMP_CWORD" -eq 1 ]; then
    words={commands}
  else
    case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
    *) case "${{COMP_WORDS[1]}} $action" in
{words}
      esac ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _rayhistory rayhistory
"""
_ZSH = """\
# rayhistory completion for zsh: eval "$(rayhistory completion zsh)"
autoload -U +X bashcompinit && bashcompinit
"""


class _Completion(NamedTuple):
    """Words that can follow a command, or a command and its action."""

    command: str
    action: str
    words: list[str]
    """Actions, or values of the positional argument."""
    flags: dict[str, list[str]]
    """Flags and their values, if these are known."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="your shell")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    from rayhistory.cli.main import build_parser  # noqa: PLC0415 - the table of commands has this module

    commands = _choices(build_parser())
    known = [each for name, parser in commands.items() for each in _completions(name, parser)]
    known.append(_Completion("help", "", list(commands), {}))
    print(_fish(known) if arguments.shell == "fish" else _bash(known, zsh=arguments.shell == "zsh"), end="")
    return 0


def _choices(parser: Parser) -> dict[str, Parser]:
    """Return the commands of the program, or the actions of a command."""
    found = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return next(found, {})


def _completions(name: str, parser: Parser) -> Iterator[_Completion]:
    """Yield what may follow a command, and each of its actions."""
    actions = _choices(parser)
    yield _Completion(name, "", [*actions, *_positional_values(parser)], _documented_flags(parser))
    for action, each in actions.items():
        yield _Completion(name, action, _positional_values(each), _documented_flags(each))


def _positional_values(parser: Parser) -> list[str]:
    positional = (action for action in parser._actions if not action.option_strings)
    return [
        str(value)
        for action in positional
        if not isinstance(action, argparse._SubParsersAction)
        for value in action.choices or ()
    ]


def _documented_flags(parser: Parser) -> dict[str, list[str]]:
    return {
        flag: [str(value) for value in action.choices or ()]
        for action in parser._actions
        for flag in action.option_strings
        if flag.startswith("--") and action.help != argparse.SUPPRESS
    }


def _bash(known: list[_Completion], *, zsh: bool) -> str:
    values = {f"{each.command} {flag}": words for each in known for flag, words in each.flags.items() if words}
    words = {
        _bash_pattern(each): [*each.words, *each.flags] for each in sorted(known, key=lambda each: not each.action)
    }
    script = _BASH.format(
        commands=shlex.quote(" ".join(_command_names(known))), values=_bash_cases(values), words=_bash_cases(words)
    )
    return _ZSH + script.partition("\n")[2] if zsh else script


def _bash_pattern(each: _Completion) -> str:
    """Return the pattern of a case. A command's own words also follow what is no action."""
    return f"{each.command} {each.action}" if each.action else f"{each.command} *"


def _bash_cases(words: dict[str, list[str]]) -> str:
    patterns = {pattern: pattern.replace(" ", r"\ ") for pattern in words}
    return "\n".join(f"      {patterns[key]}) words={shlex.quote(' '.join(each))} ;;" for key, each in words.items())


def _fish(known: list[_Completion]) -> str:
    lines = ["# rayhistory completion for fish: rayhistory completion fish | source"]
    lines += [f"complete -c rayhistory -n __fish_use_subcommand -f -a {name}" for name in _command_names(known)]
    for each in known:
        seen = f"__fish_seen_subcommand_from {each.command}"
        where = shlex.quote(f"{seen}; and __fish_seen_subcommand_from {each.action}" if each.action else seen)
        prefix = f"complete -c rayhistory -n {where}"
        if each.words and each.command != "help":
            lines.append(f"{prefix} -f -a {shlex.quote(' '.join(each.words))}")
        for flag, values in each.flags.items():
            choices = f" -x -a {shlex.quote(' '.join(values))}" if values else ""
            lines.append(f"{prefix} -l {flag.removeprefix('--')}{choices}")
    return "\n".join(lines) + "\n"


def _command_names(known: list[_Completion]) -> list[str]:
    return list(dict.fromkeys(each.command for each in known))
