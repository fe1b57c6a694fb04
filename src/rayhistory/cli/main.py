"""`rayhistory`: record, serve and look at sessions, on a laptop as well as in CI or on a cluster without Kubernetes."""

import argparse
import asyncio
import re
import socket
import sys
from collections.abc import Callable

from rayhistory import __version__
from rayhistory.cli import doctor, env, index, record, serve, sessions
from rayhistory.errors import RayHistoryError, UsageError
from rayhistory.settings import STORE_COMMANDS, Parser, Settings, add_flags, parse_name, resolve

_STORE = frozenset({"store", "storage_backend", "local_storage_dir", "storage_root_dir", "storage_backend_config_path"})
_SERVE = _STORE | {
    "port", "host", "allowed_hosts", "dashboard_dir", "cache_dir", "cache_size", "fold_memory", "folds",
    "index_ahead",
    "vanished_after",
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


def _add_run(commands: "argparse._SubParsersAction[Parser]") -> None:
    text = "run a command as a job on a local Ray and keep its session"
    parser = _add(commands, "run", _run, text, _STORE)
    parser.add_argument(
        "--name", type=_cluster_name, default=host_name(), help="name of the cluster (default: this host)"
    )
    parser.add_argument("--namespace", type=_cluster_name, default="default", help="namespace (default: default)")
    parser.add_argument("--num-cpus", type=int, help="CPUs that Ray may use (default: all)")
    parser.add_argument("--port", type=int, default=8080, help="port of your server, for the link (default: 8080)")
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND …", help="what to run, after --")


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
