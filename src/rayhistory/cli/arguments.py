"""Arguments and value parsers that several commands share."""

import argparse
import re
import shlex
import socket
from collections.abc import Callable
from typing import TypeVar

from rayhistory.names import cluster_name_from, parse_dns_name
from rayhistory.settings import parse_duration

T = TypeVar("T")

STORE_SETTINGS = frozenset(
    {"store", "storage_backend", "local_storage_dir", "storage_root_dir", "storage_backend_config_path"}
)
CATALOG_SETTINGS = STORE_SETTINGS | {"vanished_after", "read_legacy_layout"}
INDEX_SETTINGS = CATALOG_SETTINGS | {"cache_dir", "cache_size", "index_memory", "index_workers"}
SERVER_SETTINGS = INDEX_SETTINGS | {
    "port", "host", "allowed_hosts", "cors_origins", "dashboard_dir", "grafana_url", "index_ahead", "auth",
    "access_file", "trusted_proxies", "user_header", "groups_header", "proxy_secret", "tls_cert", "tls_key",
    "audit_log", "rate_limit", "live", "live_networks", "sql", "sql_memory", "sql_timeout", "notify_rules",
    "run_key", "price", "keep_runs",
}  # fmt: skip

_DAY_S = 86_400


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --name and --namespace, for commands that create a session."""
    add_cluster_name_argument(parser, cluster_name_from(socket.gethostname()), "this host's name")
    add_namespace_argument(parser)


def add_cluster_name_argument(parser: argparse.ArgumentParser, default: str | None, shown_default: str) -> None:
    parser.add_argument(
        "--name", type=value_type(parse_dns_name), default=default, metavar="NAME",
        help=f"name of the cluster (default: {shown_default})",
    )  # fmt: skip


def add_namespace_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--namespace", type=value_type(parse_dns_name), default="default", metavar="NAME",
        help="namespace of the cluster (default: default)",
    )  # fmt: skip


def setting_flags(arguments: argparse.Namespace) -> list[str]:
    """Return the settings that were given as flags, for a command that the user can paste."""
    prefix = "setting_"
    return [
        shlex.quote(f"--{name.removeprefix(prefix).replace('_', '-')}={value}")
        for name, value in vars(arguments).items()
        if name.startswith(prefix)
    ]


def value_type(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Convert a parser to an argparse type. For an invalid value, argparse prints the value and the parser's hint."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None

    return read


def parse_retention_age(text: str) -> float:
    """Return seconds from an age in hours, days or weeks. Minutes are not accepted, because `1m` is ambiguous."""
    if not re.fullmatch(r"\d+[hdw]", text):
        raise ValueError("use hours, days or weeks, such as 12h, 30d or 2w")
    return parse_age(text)


def parse_age(text: str) -> float:
    """Return seconds from an age such as 30d, 2w or 12h."""
    if match := re.fullmatch(r"(\d+)([dw])", text):
        return int(match[1]) * _DAY_S * (7 if match[2] == "w" else 1)
    try:
        return parse_duration(text)
    except ValueError:
        raise ValueError("use an age such as 30d, 2w or 12h") from None
