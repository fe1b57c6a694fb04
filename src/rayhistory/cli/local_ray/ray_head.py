"""The process of `ray start --head --block`, with its command, environment and ports."""

import asyncio
import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Self

from rayhistory import ray_env
from rayhistory.cli.local_ray import subreaper
from rayhistory.cli.local_ray.ports import ReservedPorts
from rayhistory.errors import UsageError

_HOST = "127.0.0.1"

# Ports that have a fixed default in Ray; it finds free ones for the rest.
_DASHBOARD_TIMEOUT = "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT"
_PORTS = ("gcs", "dashboard", "agent", "client", "autoscaler_metrics", "dashboard_metrics")

# Variables of another Ray cluster, for example if we run inside one of its jobs.
_OTHER_CLUSTER_VARIABLES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_REDIS_ADDRESS", "RAY_TMPDIR")


class RayHead:
    """The process of a Ray head. `LocalRay` waits until its cluster is ready."""

    def __init__(self, process: asyncio.subprocess.Process, ports: ReservedPorts, output: Path) -> None:
        self.ports = ports
        self.dashboard_url = f"http://{_HOST}:{ports['dashboard']}"
        self.agent_url = f"http://{_HOST}:{ports['agent']}"
        self._process = process
        self._output = output

    @classmethod
    async def start(
        cls,
        command: Path,
        version: str,
        *,
        temp_dir: Path,
        events_url: str,
        num_cpus: int | None,
        stop_grace: float,
    ) -> Self:
        ports = ReservedPorts(_PORTS)
        output = temp_dir / "ray-start.log"
        with output.open("wb") as sink:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", subreaper.__file__, str(stop_grace)),
                *_start_command(command, version, temp_dir, ports, num_cpus),
                stdin=asyncio.subprocess.PIPE,
                stdout=sink,
                stderr=sink,
                env=_environment(command, version, events_url, ports),
                start_new_session=True,
            )
        return cls(process, ports, output)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    async def stop(self) -> None:
        self.ports.release()
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()

    def output_tail(self, lines: int = 30) -> str:
        try:
            text = self._output.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.rstrip().splitlines()[-lines:])


def find_ray(given: Path | None = None) -> Path:
    """Return the given `ray` command, else that of this environment, else the one on PATH."""
    beside = Path(sys.executable).with_name("ray")
    found = given or (beside if beside.exists() else shutil.which("ray"))
    if found is None or not Path(found).exists():
        where = f"at {given}" if given else f"beside {sys.executable} or on PATH"
        raise UsageError(f"no `ray` command {where}: install it with pip install 'ray[default]'")
    return Path(found).absolute()


def job_path(command: Path) -> str:
    """Return the PATH of jobs. `python` in a job's command is the one of this Ray."""
    return os.pathsep.join([str(command.parent), os.environ.get("PATH", os.defpath)])


async def ray_version(command: Path) -> str:
    if command.parent == Path(sys.executable).parent:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version("ray")
    process = await asyncio.create_subprocess_exec(
        command, "--version", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output = (await process.communicate())[0].decode(errors="replace")
    match = re.search(r"version (\S+)", output)
    if match is None:
        raise UsageError(f"cannot find a version in the output of {command} --version: {output.strip()[-200:]!r}")
    return match[1]


def _start_command(
    command: Path, version: str, temp_dir: Path, ports: ReservedPorts, num_cpus: int | None
) -> list[str]:
    argv = [
        *(str(command), "start", "--head", "--block", "--disable-usage-stats", "--log-color=false"),
        "--include-dashboard=true",
        f"--node-ip-address={_HOST}",
        f"--dashboard-host={_HOST}",
        f"--port={ports['gcs']}",
        f"--dashboard-port={ports['dashboard']}",
        f"--dashboard-agent-listen-port={ports['agent']}",
        f"--ray-client-server-port={ports['client']}",
        # Random ports: the default is a fixed range that two clusters would share.
        "--min-worker-port=0",
        "--max-worker-port=0",
        f"--temp-dir={temp_dir}",
        f"--system-config={json.dumps(ray_env.system_config(version))}",
    ]
    if num_cpus is not None:
        argv.append(f"--num-cpus={num_cpus}")
    return argv


def _environment(command: Path, version: str, events_url: str, ports: ReservedPorts) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in _OTHER_CLUSTER_VARIABLES}
    return {
        **inherited,
        **ray_env.export_environment(events_url, version),
        "AUTOSCALER_METRIC_PORT": str(ports["autoscaler_metrics"]),
        "DASHBOARD_METRIC_PORT": str(ports["dashboard_metrics"]),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Otherwise Ray on Linux replaces 127.0.0.1 by the address of a network interface.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # Otherwise Ray 2.60 drains the node for up to 30 s before it exits.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        # Otherwise Ray's dashboard gives up on a busy machine, after 30 s.
        _DASHBOARD_TIMEOUT: inherited.get(_DASHBOARD_TIMEOUT, "80"),
        "PATH": job_path(command),
    }
