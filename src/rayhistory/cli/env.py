"""`rayhistory env`: the settings that a Ray cluster needs, right for its version."""

import argparse
import shlex
from importlib.metadata import PackageNotFoundError, version

import msgspec

from rayhistory.rayenv import export_environment, system_config
from rayhistory.settings import Settings


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    ray_version = arguments.ray_version or installed_ray() or "2.60.0"
    variables = export_environment(arguments.events_url, ray_version)
    config = msgspec.json.encode(system_config(ray_version)).decode()
    if arguments.json:
        print(msgspec.json.encode({"environment": variables, "system_config": system_config(ray_version)}).decode())
        return 0
    print(f"# For Ray {ray_version}: set these where `ray start` runs, on every node, and where drivers run.")
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")
    print("# A driver that lacks them exports nothing. This on the head makes it unnecessary to set them for drivers:")
    print(f"# ray start --head --system-config={shlex.quote(config)}")
    return 0


def installed_ray() -> str | None:
    try:
        return version("ray")
    except PackageNotFoundError:
        return None
