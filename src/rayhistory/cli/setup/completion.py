"""`rayhistory completion`: a script that completes commands and flags, for bash, zsh or fish."""

import argparse
import shlex

from rayhistory.settings import Parser, Settings

_BASH = """\
# rayhistory completion for bash: eval "$(rayhistory completion bash)"
_rayhistory() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words
  if [ "$COMP_CWORD" -eq 1 ]; then
    words={commands}
  else
    case ${{COMP_WORDS[1]}} in
{cases}
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="your shell")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    from rayhistory.cli.main import build_parser  # noqa: PLC0415 - the table of commands has this module

    flags = flags_of_commands(build_parser())
    print(_fish(flags) if arguments.shell == "fish" else _bash(flags, zsh=arguments.shell == "zsh"), end="")
    return 0


def flags_of_commands(parser: Parser) -> dict[str, list[str]]:
    """Return the documented flags of each command."""
    (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {
        name: [
            flag
            for action in command._actions
            for flag in action.option_strings
            if flag.startswith("--") and action.help != argparse.SUPPRESS
        ]
        for name, command in subparsers.choices.items()
    }


def _bash(flags: dict[str, list[str]], *, zsh: bool) -> str:
    cases = "\n".join(f"      {name}) words={shlex.quote(' '.join(words))} ;;" for name, words in flags.items())
    script = _BASH.format(commands=shlex.quote(" ".join(flags)), cases=cases)
    return _ZSH + script.partition("\n")[2] if zsh else script


def _fish(flags: dict[str, list[str]]) -> str:
    lines = ["# rayhistory completion for fish: rayhistory completion fish | source"]
    lines += [f"complete -c rayhistory -n __fish_use_subcommand -f -a {name}" for name in flags]
    lines += [
        f"complete -c rayhistory -n '__fish_seen_subcommand_from {name}' -l {flag.removeprefix('--')}"
        for name, words in flags.items()
        for flag in words
    ]
    return "\n".join(lines) + "\n"
