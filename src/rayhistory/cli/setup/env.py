"""`rayhistory env`: the environment variables that make a Ray cluster export events, for its version."""

import argparse
import shlex
from importlib.metadata import PackageNotFoundError, version
from urllib.parse import urlsplit

import msgspec

from rayhistory.cli.arguments import add_json_argument, value_type
from rayhistory.ray_env import export_environment, system_config
from rayhistory.settings import Settings

DEFAULT_RAY_VERSION = "2.60.0"
_EVENTS_PATH = "/v1/events"
_DEFAULT_EVENTS_URL = f"http://127.0.0.1:8084{_EVENTS_PATH}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ray-version", default="", metavar="VERSION", help="Ray version of the cluster (default: the installed one)"
    )
    parser.add_argument(
        "--events-url", type=value_type(parse_events_url), default=_DEFAULT_EVENTS_URL, metavar="URL",
        help=f"URL of the collector, with or without {_EVENTS_PATH} (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--system-config", action="store_true", help="print only the value for `ray start --head --system-config=`"
    )
    add_json_argument(parser)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    ray_version = arguments.ray_version or installed_ray_version() or DEFAULT_RAY_VERSION
    variables = export_environment(arguments.events_url, ray_version)
    config = system_config(ray_version)
    config_text = msgspec.json.encode(config).decode()
    if arguments.json:
        print(msgspec.json.encode({"environment": variables, "system_config": config}).decode())
        return 0
    if arguments.system_config:
        print(config_text)
        return 0
    print(f"# Ray {ray_version}: set these variables on every node before `ray start`, and start the head with:")
    print(f"# ray start --head --system-config={shlex.quote(config_text)}")
    print("# The system config reaches every driver. Without it, drivers that lack these variables export no events,")
    print("# and their tasks have no name or error.")
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


def parse_events_url(text: str) -> str:
    """Return the URL to which Ray sends events. Ray loses all events without an error if the URL is wrong."""
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment or url.port == 0:
        raise ValueError(f"use a URL such as {_DEFAULT_EVENTS_URL}")
    return url.geturl() if url.path.strip("/") else url._replace(path=_EVENTS_PATH).geturl()


def installed_ray_version() -> str | None:
    try:
        return version("ray")
    except PackageNotFoundError:
        return None
