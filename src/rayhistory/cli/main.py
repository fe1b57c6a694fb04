"""The `rayhistory` program: one table of commands, each in a module of its own."""

import argparse
import os
import sys
from typing import Any, NamedTuple, Protocol

from rayhistory import __version__
from rayhistory.cli import dashboards, demo, doctor, env, index, serve
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


COMMANDS = (
    Command("run", run, "run a command as a Ray job on this machine, and record its session", STORE_SETTINGS),
    Command("serve", serve, "serve the sessions in the store", SERVER_SETTINGS),
    Command("demo", demo, "record a sample session if the store is empty, then serve", SERVER_SETTINGS),
    Command("sessions", sessions, "list the sessions in the store", CATALOG_SETTINGS),
    *(
        Command(
            table.replace("_", "-"), table_commands, f"list the {table.replace('_', ' ')} of a session", INDEX_SETTINGS,
            {"table": table},
        )
        for table in table_commands.DEFAULT_COLUMNS
    ),
    Command("summary", summary, "count the tasks or actors of a session by name and state", INDEX_SETTINGS),
    Command("timeline", timeline, "write a trace of a session's tasks, for Perfetto", INDEX_SETTINGS),
    Command("logs", logs, "list or show the log files of a session", INDEX_SETTINGS),
    Command("grep", grep, "search the log files of one or all sessions", INDEX_SETTINGS),
    Command("diagnose", diagnose, "explain why a session failed or was slow; exit code 3: it failed", INDEX_SETTINGS),
    Command("metrics", metrics, "query the stored metrics of a session in PromQL, and plot the result", INDEX_SETTINGS),
    Command("gaps", gaps, "list what is missing from a session, and why", INDEX_SETTINGS),
    Command("open", open, "open a session in a browser", INDEX_SETTINGS),
    Command("sql", sql, "query the tables of one or all sessions in SQL", INDEX_SETTINGS),
    Command("export", export, "write the tables of a session as Parquet files", INDEX_SETTINGS),
    Command("index", index, "index sessions now, so that they open at once later", INDEX_SETTINGS),
    Command("copy", copy, "copy sessions to another store", CATALOG_SETTINGS),
    Command("import-dir", import_dir, "import a session directory of Ray from disk", CATALOG_SETTINGS),
    Command("snapshot", snapshot, "store a running cluster's state and logs from its dashboard", CATALOG_SETTINGS),
    Command("retention", retention, "list sessions that exceed limits, and remove them with --yes", CATALOG_SETTINGS),
    Command("store", store_commands, "check and repair the indexes in the store"),
    Command("pin", pin, "exclude sessions from retention", CATALOG_SETTINGS, {"pinned": True}),
    Command("unpin", pin, "include pinned sessions in retention again", CATALOG_SETTINGS, {"pinned": False}),
    Command("dashboards", dashboards, "list, add and remove Ray Dashboard frontends"),
    Command("env", env, "print the environment variables that make a Ray cluster export events"),
    Command("doctor", doctor, "check the settings, the store, Ray and the ports", SERVER_SETTINGS),
)  # fmt: skip


def main() -> None:
    parser = _build_parser()
    arguments = parser.parse_args()
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


def _build_parser() -> Parser:
    parser = Parser(
        prog="rayhistory",
        description="Record Ray clusters, and serve and inspect them after they are gone.",
        epilog="Start with: rayhistory run -- python my_job.py, then rayhistory serve.",
    )
    parser.add_argument("--version", action="version", version=f"rayhistory {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    for command in COMMANDS:
        description = f"{command.help[0].upper()}{command.help[1:]}."
        subparser = subparsers.add_parser(command.name, help=command.help, description=description)
        command.module.add_arguments(subparser)
        add_flags(subparser.add_argument_group("settings"), CLI, command.settings)
        subparser.set_defaults(command_module=command.module, **command.defaults)
    return parser


if __name__ == "__main__":
    main()
