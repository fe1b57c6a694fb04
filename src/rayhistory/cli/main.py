"""`rayhistory`: record, serve and look at sessions, on a laptop as well as in CI or on a cluster without Kubernetes."""

import argparse
import asyncio
import os
import re
import socket
import sys
from collections.abc import Callable
from functools import partial

from rayhistory import __version__
from rayhistory.cli import (
    asking,
    copying,
    dashboards,
    doctor,
    env,
    importing,
    index,
    logs,
    looking,
    output,
    reading,
    record,
    retention,
    rows,
    serve,
    sessions,
    sql,
)
from rayhistory.errors import RayHistoryError, UsageError
from rayhistory.settings import STORE_COMMANDS, Parser, Settings, add_flags, parse_name, resolve

_STORE = frozenset({"store", "storage_backend", "local_storage_dir", "storage_root_dir", "storage_backend_config_path"})
_SERVE = _STORE | {
    "port", "host", "allowed_hosts", "cors_origins", "dashboard_dir", "cache_dir", "cache_size", "fold_memory", "folds",
    "index_ahead", "grafana_url",
    "vanished_after", "auth", "access_file", "trusted_proxies", "user_header", "groups_header", "tls_cert", "tls_key",
    "audit_log", "expensive_calls", "live",
}  # fmt: skip

_INDEX = _STORE | {"cache_dir", "cache_size", "fold_memory", "folds", "vanished_after"}

Command = Callable[[argparse.Namespace, Settings], int]


def main() -> None:
    parser = _parser()
    arguments = parser.parse_args()
    command: Command | None = getattr(arguments, "command", None)
    if command is None:
        parser.print_help()
        raise SystemExit(2)
    try:
        settings, warnings = resolve(STORE_COMMANDS, vars(arguments))
        for warning in warnings:
            sys.stderr.write(f"rayhistory: {warning}\n")
        raise SystemExit(command(arguments, settings))
    except UsageError as error:
        sys.stderr.write(f"rayhistory: {error}\n")
        raise SystemExit(2) from None
    except RayHistoryError as error:
        sys.stderr.write(f"rayhistory: {error}\n")
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # who read our output has seen enough
        raise SystemExit(141) from None


def _parser() -> Parser:
    parser = Parser(
        prog="rayhistory",
        description="Keeps what a Ray cluster knew, and gives it back when the cluster is gone.",
        epilog="Start with: rayhistory run -- python my_job.py, then rayhistory serve.",
    )
    parser.add_argument("--version", action="version", version=f"rayhistory {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    _add_run(commands)
    _add(commands, "serve", serve.run, "serve the sessions in the store", _SERVE)
    listing = _add(commands, "sessions", sessions.run, "list the sessions in the store", _STORE | {"vanished_after"})
    listing.add_argument("--json", action="store_true", help="as JSON, for programs")
    indexing = _add(commands, "index", index.run, "fold sessions now, so that opening them is instant", _INDEX)
    indexing.add_argument("sessions", nargs="*", metavar="SESSION", help="session or namespace/cluster (default: all)")
    indexing.add_argument("--watch", action="store_true", help="go on as sessions grow and end")
    indexing.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="fold on this machine, or on a Ray cluster"
    )
    indexing.add_argument("--address", default="", help="of the Ray cluster (default: the one that is found)")
    _add_reading(commands)
    _add_keeping(commands)
    _add_dashboards(commands)
    _add(commands, "doctor", doctor.run, "check settings, store, Ray and ports, and say what to do", _SERVE)
    _add_env(commands)
    demo = _add(commands, "demo", serve.demo, "record a sample session if there is none, then serve", _SERVE)
    demo.add_argument("--name", type=_cluster_name, default="demo", help="name of the cluster (default: demo)")
    return parser


def _add(
    commands: "argparse._SubParsersAction[Parser]",
    name: str,
    run: Command,
    text: str,
    settings: frozenset[str],
) -> Parser:
    parser = commands.add_parser(name, help=text, description=text.capitalize() + ".")
    add_flags(parser, STORE_COMMANDS, settings)
    parser.set_defaults(command=run)
    return parser


def _add_reading(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Commands that look into one session, and those that look into many."""
    for table in rows.TABLES:
        name = table.replace("_", "-")
        parser = _add(commands, name, partial(rows.run, table), f"list a session's {name.replace('-', ' ')}", _INDEX)
        asking.add_arguments(parser)
        rows.add_arguments(parser)
    for name, run, text, more in (
        ("summary", reading.summary, "count a session's tasks or actors, by name and state", reading.add_summary),
        ("timeline", reading.timeline, "write what tasks did when, for Perfetto", reading.add_timeline),
        ("logs", logs.run, "list log files, and show what a task, actor, job or process wrote", logs.add_arguments),
        ("gaps", reading.gaps, "say what is missing from a session, and why", output.add_arguments),
        ("open", reading.open_session, "open a session's pages in a browser", reading.add_open),
    ):
        parser = _add(commands, name, run, text, _INDEX)
        asking.add_arguments(parser)
        more(parser)
    sql.add_arguments(_add(commands, "sql", sql.run, "ask the tables of sessions anything, in SQL", _INDEX))
    sql.add_export_arguments(_add(commands, "export", sql.export, "write a session's tables as Parquet files", _INDEX))


def _add_keeping(commands: "argparse._SubParsersAction[Parser]") -> None:
    settings = _STORE | {"vanished_after"}
    copying.add_arguments(_add(commands, "copy", copying.run, "copy sessions to another store", settings))
    text = "bring in a session directory of Ray that was found on a disk, without any collector"
    bringing = _add(commands, "import-dir", importing.run, text, settings)
    bringing.add_argument("directory", metavar="DIR", help="the session's directory, as /tmp/ray/session_…")
    _add_names(bringing)
    text = "keep what the dashboard of a running cluster can tell now, without any collector"
    look = _add(commands, "snapshot", looking.run, text, settings)
    looking.add_arguments(look)
    _add_names(look)
    text = "show which sessions are no longer to be kept, and with --yes remove them"
    retention.add_arguments(_add(commands, "retention", retention.run, text, settings))
    for name, run, text in (
        ("pin", retention.pin, "keep sessions for ever, whatever retention says"),
        ("unpin", retention.unpin, "leave pinned sessions to retention again"),
    ):
        marking = _add(commands, name, run, text, settings)
        marking.add_argument("sessions", nargs="+", metavar="SESSION", help="session or namespace/cluster")


def _add_dashboards(commands: "argparse._SubParsersAction[Parser]") -> None:
    text = "list, get and remove dashboards of other versions of Ray"
    parser = commands.add_parser("dashboards", help=text, description=text.capitalize() + ".")
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=Parser)
    settings = frozenset({"dashboard_dir", "cache_dir"})
    _add(actions, "list", dashboards.run_list, "list the dashboards that sessions can be shown in", settings)
    adding = _add(actions, "add", dashboards.run_add, "get the dashboard of a version of Ray", settings)
    adding.add_argument(
        "what", nargs="+", metavar="VERSION|WHEEL|DIRECTORY", help="a version, which pip downloads; a file; a directory"
    )
    adding.add_argument("--as", dest="called", default="", metavar="VERSION", help="where it does not tell its version")
    removing = _add(actions, "remove", dashboards.run_remove, "remove dashboards that were added", settings)
    removing.add_argument("versions", nargs="+", metavar="VERSION", help="as the list shows it")


def _add_run(commands: "argparse._SubParsersAction[Parser]") -> None:
    text = "run a command as a job on a local Ray and keep its session"
    parser = _add(commands, "run", _run, text, _STORE)
    _add_names(parser)
    parser.add_argument("--num-cpus", type=int, help="CPUs that Ray may use (default: all)")
    parser.add_argument("--port", type=int, default=8080, help="port of your server, for the link (default: 8080)")
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND …", help="what to run, after --")


def _add_names(parser: Parser) -> None:
    parser.add_argument(
        "--name", type=_cluster_name, default=host_name(), help="name of the cluster (default: this host)"
    )
    parser.add_argument("--namespace", type=_cluster_name, default="default", help="namespace (default: default)")


def _run(arguments: argparse.Namespace, settings: Settings) -> int:
    argv = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    if not argv:
        raise UsageError("say what to run: rayhistory run -- python my_job.py")
    wish = record.Wish(argv, settings, arguments.name, arguments.namespace, arguments.num_cpus)
    recorded = asyncio.run(record.record(wish))
    link = f"http://127.0.0.1:{arguments.port}{recorded.url}"
    sys.stderr.write(f"Session kept: {link}  (to look at it: rayhistory serve)\n")
    return recorded.exit_code


def _add_env(commands: "argparse._SubParsersAction[Parser]") -> None:
    text = "print the environment that makes a Ray cluster export its events"
    parser = _add(commands, "env", env.run, text, frozenset())
    parser.add_argument("--ray-version", default="", help="the cluster's Ray version (default: the installed one)")
    parser.add_argument(
        "--events-url",
        default="http://127.0.0.1:8084/v1/events",
        help="where the collector listens (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")


def _cluster_name(text: str) -> str:
    try:
        return parse_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def host_name() -> str:
    """This host's name, made fit to name a cluster."""
    name = re.sub(r"[^a-z0-9.-]+", "-", socket.gethostname().lower()).strip("-.")
    return name or "local"


if __name__ == "__main__":
    main()
