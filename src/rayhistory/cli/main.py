"""The `rayhistory` program: a table of commands, each in its own module."""

import argparse
import importlib
import os
import sys
from collections.abc import Container
from typing import Any, NamedTuple, Protocol, cast

from rayhistory import __version__
from rayhistory.cli.arguments import CATALOG_SETTINGS, INDEX_SETTINGS, SERVER_SETTINGS, STORE_SETTINGS
from rayhistory.cli.inspect.default_columns import DEFAULT_COLUMNS
from rayhistory.errors import NotFound, RayHistoryError, UsageError
from rayhistory.optional_packages import skip_pandas
from rayhistory.settings import CLI, Parser, Settings, add_flags, resolve

_INTERRUPTED, _BROKEN_PIPE = 128 + 2, 128 + 13


class CommandModule(Protocol):
    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None: ...

    def run(self, arguments: argparse.Namespace, settings: Settings, /) -> int: ...


class Command(NamedTuple):
    name: str
    module: str
    """Module below `rayhistory.cli`. It is imported when the command is used, to start fast."""
    help: str
    settings: frozenset[str] = frozenset()
    defaults: dict[str, Any] = {}  # noqa: RUF012
    """Fixed values of arguments. They tell a module with several commands which one runs."""

    def load(self) -> CommandModule:
        return cast(CommandModule, importlib.import_module(f"rayhistory.cli.{self.module}"))


def _table_command(table: str) -> Command:
    name = table.replace("_", "-")
    return Command(
        name,
        "inspect.table_commands",
        f"list the {table.replace('_', ' ')} of a session",
        INDEX_SETTINGS,
        {"table": table},
    )


_STORE, _CATALOG, _INDEX, _SERVER = STORE_SETTINGS, CATALOG_SETTINGS, INDEX_SETTINGS, SERVER_SETTINGS
_NOTIFY = frozenset({"notify_rules"})

COMMAND_GROUPS: dict[str, tuple[Command, ...]] = {
    "Record": (
        Command("run", "local_ray.run", "run a command as a Ray job on this machine, and record its session", _STORE),
        Command("demo", "demo", "record a sample session if the store is empty, then serve", _SERVER),
        Command("env", "setup.env", "print the environment variables that make a Ray cluster export events"),
    ),
    "View": (
        Command("serve", "serve", "serve the sessions in the store", _SERVER),
        Command("open", "inspect.open", "open a session in a browser", _SERVER),
        Command("sessions", "inspect.sessions", "list the sessions in the store", _INDEX),
    ),
    "Inspect a session": (
        *map(_table_command, DEFAULT_COLUMNS),
        Command("summary", "inspect.summary", "count the tasks or actors of a session by name and state", _INDEX),
        Command("logs", "inspect.logs", "list or show the log files of a session", _INDEX),
        Command("grep", "inspect.grep", "search the log files of one or all sessions", _INDEX),
        Command("diagnose", "inspect.diagnose", "explain why a session failed (exit code 3) or was slow", _INDEX),
        Command("compare", "inspect.compare", "show what differs between sessions", _INDEX),
        Command("metrics", "inspect.metrics", "query the stored metrics of a session in PromQL, and plot them", _INDEX),
        Command("timeline", "inspect.timeline", "write a trace of a session's tasks, for Perfetto", _INDEX),
        Command("gaps", "inspect.gaps", "list gaps: missing or incomplete data of a session, and why", _INDEX),
        Command("sql", "inspect.sql", "query the tables of one or all sessions in SQL", _INDEX),
        Command("export", "inspect.export", "write the tables of a session as Parquet files", _INDEX),
    ),
    "Manage the store": (
        Command("index", "index", "index sessions now, so that they open faster", _INDEX),
        Command("copy", "archive.copy", "copy sessions to another store", _CATALOG),
        Command("bundle", "archive.bundle", "write a session to one file: an HTML report, or all data as zip", _INDEX),
        Command("import-dir", "archive.import_dir", "import a session directory of Ray from disk", _CATALOG),
        Command("snapshot", "archive.snapshot", "store a running cluster's state and logs via its dashboard", _CATALOG),
        Command(
            "retention", "archive.retention", "list sessions that exceed limits; --yes removes them",
            _CATALOG | {"keep_runs"},
        ),
        Command("store", "archive.store_commands", "check and repair the indexes in the store, and compact its logs"),
        Command("pin", "archive.pin", "exclude sessions from retention", _CATALOG, {"pinned": True}),
        Command("unpin", "archive.pin", "include pinned sessions in retention again", _CATALOG, {"pinned": False}),
    ),
    "Serve agents": (
        Command("mcp", "agents.mcp", "serve sessions to a coding agent over standard input and output (MCP)", _INDEX),
        Command("skill", "agents.skill", "print a guide for coding agents"),
    ),
    "Set up": (
        Command("doctor", "setup.doctor", "check the settings, the store, Ray and the ports", _SERVER),
        Command("notify", "setup.notify", "send a test notification to the receivers of your rules", _NOTIFY),
        Command("dashboards", "setup.dashboards", "list, add and remove Ray Dashboard frontends"),
        Command("completion", "setup.completion", "print a script that completes commands, flags and their values"),
    ),
}  # fmt: skip
"""All commands by purpose, as `rayhistory --help` lists them."""

COMMANDS = tuple(command for group in COMMAND_GROUPS.values() for command in group)


def main() -> None:
    skip_pandas()
    argv = sys.argv[1:]
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    parser = build_parser(argv)
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        getattr(arguments, "command_parser", parser).assign_late(arguments, unknown)
    module: CommandModule | None = getattr(arguments, "command_module", None)
    if module is None:
        parser.print_help()
        raise SystemExit(2)
    try:
        settings, warnings = resolve(CLI, vars(arguments))
        for warning in warnings:
            sys.stderr.write(f"rayhistory: {warning}\n")
        raise SystemExit(module.run(arguments, settings))
    except (UsageError, NotFound) as error:
        sys.stderr.write(f"rayhistory: {error}\n")
        raise SystemExit(2) from None
    except RayHistoryError as error:
        sys.stderr.write(f"rayhistory: {error}\n")
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    except BrokenPipeError:
        # The reader of our output has closed it: discard the rest quietly.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(_BROKEN_PIPE) from None


COMMAND_NAMES = frozenset(command.name for command in COMMANDS)


def build_parser(used: Container[str] = COMMAND_NAMES) -> Parser:
    """Return the parser. Commands that are not in `used` get no arguments, so that their modules are not imported."""
    parser = Parser(
        prog="rayhistory",
        usage="rayhistory COMMAND [options]",
        description="Record Ray clusters, and serve and inspect them after they are gone.",
        epilog=f"{_command_list()}\n\nStart with: rayhistory run -- python my_job.py, then rayhistory open --serve.\n"
        "Help for a command: rayhistory help COMMAND",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rayhistory {__version__}")
    subparsers = parser.add_subparsers(
        metavar="COMMAND", prog="rayhistory", parser_class=Parser, help=argparse.SUPPRESS
    )
    for command in COMMANDS:
        description = f"{command.help[0].upper()}{command.help[1:]}."
        subparser = subparsers.add_parser(command.name, description=description)
        if command.name in used:
            _add_arguments(subparser, command)
    return parser


def _add_arguments(parser: Parser, command: Command) -> None:
    module = command.load()
    module.add_arguments(parser)
    parser.shorten_usage()
    if command.settings:
        add_flags(parser.add_argument_group("settings"), CLI, command.settings)
    parser.set_defaults(command_module=module, command_parser=parser, **command.defaults)


def _command_list() -> str:
    """Return the commands, grouped by purpose."""
    width = max(len(command.name) for command in COMMANDS)
    groups = (
        "\n".join([f"{title}:", *(f"  {command.name.ljust(width)}  {command.help}" for command in group)])
        for title, group in COMMAND_GROUPS.items()
    )
    return "\n\n".join(groups)


if __name__ == "__main__":
    main()
