"""The `rayhistory` program: one table of commands, each in a module of its own."""

import argparse
import os
import sys
from typing import Any, NamedTuple, Protocol

from rayhistory import __version__
from rayhistory.cli import completion, dashboards, demo, doctor, env, index, mcp, serve, skill
from rayhistory.cli.archive import copy, import_dir, pin, retention, snapshot, store_commands
from rayhistory.cli.arguments import CATALOG_SETTINGS, INDEX_SETTINGS, SERVER_SETTINGS, STORE_SETTINGS
from rayhistory.cli.inspect import (
    diagnose,
    export,
    gaps,
    grep,
    logs,
    metrics,
    open,  # noqa: A004
    sessions,
    sql,
    summary,
    table_commands,
    timeline,
)
from rayhistory.cli.local_ray import run
from rayhistory.errors import RayHistoryError, UsageError
from rayhistory.settings import CLI, Parser, Settings, add_flags, resolve

_INTERRUPTED, _BROKEN_PIPE = 128 + 2, 128 + 13


class CommandModule(Protocol):
    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None: ...

    def run(self, arguments: argparse.Namespace, settings: Settings, /) -> int: ...


class Command(NamedTuple):
    name: str
    module: CommandModule
    help: str
    settings: frozenset[str] = frozenset()
    defaults: dict[str, Any] = {}  # noqa: RUF012
    """Argument values that distinguish commands of the same module."""


def _table_command(table: str) -> Command:
    name = table.replace("_", "-")
    return Command(
        name, table_commands, f"list the {table.replace('_', ' ')} of a session", INDEX_SETTINGS, {"table": table}
    )


COMMAND_GROUPS: dict[str, tuple[Command, ...]] = {
    "Record": (
        Command("run", run, "run a command as a Ray job on this machine, and record its session", STORE_SETTINGS),
        Command("demo", demo, "record a sample session if the store is empty, then serve", SERVER_SETTINGS),
        Command("env", env, "print the environment variables that make a Ray cluster export events"),
    ),
    "Look": (
        Command("serve", serve, "serve the sessions in the store", SERVER_SETTINGS),
        Command("open", open, "open a session in a browser", SERVER_SETTINGS),
        Command("sessions", sessions, "list the sessions in the store", INDEX_SETTINGS),
    ),
    "Inspect a session": (
        *map(_table_command, table_commands.DEFAULT_COLUMNS),
        Command("summary", summary, "count the tasks or actors of a session by name and state", INDEX_SETTINGS),
        Command("logs", logs, "list or show the log files of a session", INDEX_SETTINGS),
        Command("grep", grep, "search the log files of one or all sessions", INDEX_SETTINGS),
        Command("diagnose", diagnose, "explain why a session failed (exit code 3) or was slow", INDEX_SETTINGS),
        Command("metrics", metrics, "query the stored metrics of a session in PromQL, and plot them", INDEX_SETTINGS),
        Command("timeline", timeline, "write a trace of a session's tasks, for Perfetto", INDEX_SETTINGS),
        Command("gaps", gaps, "list what is missing from a session, and why", INDEX_SETTINGS),
        Command("sql", sql, "query the tables of one or all sessions in SQL", INDEX_SETTINGS),
        Command("export", export, "write the tables of a session as Parquet files", INDEX_SETTINGS),
    ),
    "Manage the store": (
        Command("index", index, "index sessions now, so that they open at once later", INDEX_SETTINGS),
        Command("copy", copy, "copy sessions to another store", CATALOG_SETTINGS),
        Command("import-dir", import_dir, "import a session directory of Ray from disk", CATALOG_SETTINGS),
        Command("snapshot", snapshot, "store a running cluster's state and logs from its dashboard", CATALOG_SETTINGS),
        Command("retention", retention, "list sessions that exceed limits; --yes removes them", CATALOG_SETTINGS),
        Command("store", store_commands, "check and repair the indexes in the store, and compact its logs"),
        Command("pin", pin, "exclude sessions from retention", CATALOG_SETTINGS, {"pinned": True}),
        Command("unpin", pin, "include pinned sessions in retention again", CATALOG_SETTINGS, {"pinned": False}),
    ),
    "Serve agents": (
        Command("mcp", mcp, "serve sessions to a coding agent over standard input and output (MCP)", INDEX_SETTINGS),
        Command("skill", skill, "print a guide for coding agents"),
    ),
    "Set up": (
        Command("doctor", doctor, "check the settings, the store, Ray and the ports", SERVER_SETTINGS),
        Command("dashboards", dashboards, "list, add and remove Ray Dashboard frontends"),
        Command("completion", completion, "print a script that completes commands and flags in your shell"),
    ),
}  # fmt: skip
"""All commands by purpose, as `rayhistory --help` lists them."""

COMMANDS = tuple(command for group in COMMAND_GROUPS.values() for command in group)


def main() -> None:
    parser = build_parser()
    arguments, unknown = parser.parse_known_args()
    if unknown:
        getattr(arguments, "command_parser", parser).reject(unknown)
    module: CommandModule | None = getattr(arguments, "command_module", None)
    if module is None:
        parser.print_help()
        raise SystemExit(2)
    try:
        settings, warnings = resolve(CLI, vars(arguments))
        for warning in warnings:
            sys.stderr.write(f"rayhistory: {warning}\n")
        raise SystemExit(module.run(arguments, settings))
    except UsageError as error:
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


def build_parser() -> Parser:
    parser = Parser(
        prog="rayhistory",
        usage="rayhistory COMMAND [options]",
        description="Record Ray clusters, and serve and inspect them after they are gone.",
        epilog=f"{_command_list()}\n\nStart with: rayhistory run -- python my_job.py, then rayhistory open --serve.\n"
        "Help for a command: rayhistory COMMAND --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rayhistory {__version__}")
    subparsers = parser.add_subparsers(
        metavar="COMMAND", prog="rayhistory", parser_class=Parser, help=argparse.SUPPRESS
    )
    for command in COMMANDS:
        description = f"{command.help[0].upper()}{command.help[1:]}."
        subparser = subparsers.add_parser(command.name, description=description)
        command.module.add_arguments(subparser)
        subparser.shorten_usage()
        if command.settings:
            add_flags(subparser.add_argument_group("settings"), CLI, command.settings)
        subparser.set_defaults(command_module=command.module, command_parser=subparser, **command.defaults)
    return parser


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
