"""Actions of a command, such as `rayhistory store check`. Each has its own parser and function."""

import argparse
from collections.abc import Callable

from rayhistory.settings import CLI, Parser, Settings, add_flags

RunAction = Callable[[argparse.Namespace, Settings], int]


class Actions:
    """The actions of one command, which share its settings."""

    def __init__(
        self,
        parser: argparse.ArgumentParser,
        command: str,
        settings: frozenset[str],
        *,
        default: RunAction | None = None,
    ) -> None:
        """`default` runs if no action is given; without it, an action is required."""
        self._settings = settings
        self._subparsers = parser.add_subparsers(
            metavar="ACTION", prog=f"rayhistory {command}", parser_class=Parser, title="actions", required=not default
        )
        if default:
            parser.set_defaults(run_action=default)
            add_flags(parser.add_argument_group("settings"), CLI, settings)

    def add(self, name: str, run: RunAction, text: str) -> Parser:
        parser = self._subparsers.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        add_flags(parser.add_argument_group("settings"), CLI, self._settings)
        parser.set_defaults(run_action=run)
        return parser


def run_action(arguments: argparse.Namespace, settings: Settings) -> int:
    """Run the action that the arguments name."""
    run: RunAction = arguments.run_action
    return run(arguments, settings)
