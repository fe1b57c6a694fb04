"""A real Ray without a collector and without event export."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec

from rayhistory.cli.local_ray import subreaper
from rayhistory.cli.local_ray.job_client import JobClient
from rayhistory.cli.local_ray.ports import ReservedPorts
from rayhistory.cli.local_ray.ray_head import find_ray
from support.paths import SAMPLE_JOB

EXPORT_FILES = {"RAY_enable_export_api_write": "1"}
"""Makes Ray write export files."""

_START_TIMEOUT_S = 180.0


class RunningRay(msgspec.Struct):
    address: str
    dashboard: str
    session: Path
    jobs: JobClient


@contextlib.asynccontextmanager
async def ray_without_collector(
    temp_dir: Path, *arguments: str, ray: Path | None = None, **environment: str
) -> AsyncIterator[RunningRay]:
    """Run Ray. `temp_dir` exists and has a short path, for Ray's sockets. `arguments` are added to `ray start`."""
    ray = ray or find_ray()
    ports = ReservedPorts(("gcs", "dashboard", "agent", "client", "autoscaler", "metrics"))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [
        str(ray), "start", "--head", "--block", "--disable-usage-stats", "--num-cpus=4",
        "--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", f"--port={ports['gcs']}",
        f"--dashboard-port={ports['dashboard']}", f"--dashboard-agent-listen-port={ports['agent']}",
        f"--ray-client-server-port={ports['client']}", "--min-worker-port=0", "--max-worker-port=0",
        f"--temp-dir={temp_dir}", *arguments,
    ]  # fmt: skip
    with (temp_dir / "output").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", subreaper.__file__, "10", *command),
            stdin=asyncio.subprocess.PIPE, stdout=output, stderr=output, start_new_session=True,
            env={
                **inherited,
                "AUTOSCALER_METRIC_PORT": str(ports["autoscaler"]), "DASHBOARD_METRIC_PORT": str(ports["metrics"]),
                "RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
                "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0", "TMPDIR": str(temp_dir),
                "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "120",  # 30 s is too short on a busy machine
                "PATH": os.pathsep.join([str(ray.parent), inherited.get("PATH", os.defpath)]), **environment,
            },
        )  # fmt: skip
    jobs: JobClient | None = None
    try:
        dashboard = f"http://127.0.0.1:{ports['dashboard']}"
        await _wait_until_ready(dashboard, f"http://127.0.0.1:{ports['agent']}")
        jobs = JobClient(dashboard)
        session = temp_dir / (temp_dir / "session_latest").resolve().name
        yield RunningRay(f"127.0.0.1:{ports['gcs']}", dashboard, session, jobs)
    finally:
        if jobs:
            await jobs.close()
        ports.release()
        assert process.stdin
        process.stdin.close()
        await process.wait()


async def run_sample_job(ray: RunningRay, submission: str = "sample-job") -> None:
    await ray.jobs.submit([sys.executable, str(SAMPLE_JOB)], submission, {}, {"team": "training"})
    assert (await ray.jobs.wait(submission))["status"] == "SUCCEEDED"


async def _wait_until_ready(dashboard: str, agent: str) -> None:
    """Poll endpoints that work even if the dashboard proxies a history server."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    async with httpx.AsyncClient(timeout=5, trust_env=False) as http:
        while True:
            try:
                head = await http.get(f"{dashboard}/api/gcs_healthz")
                node = await http.get(f"{agent}/api/local_raylet_healthz")
                if head.is_success and node.is_success:
                    return
            except httpx.HTTPError:
                pass
            assert time.monotonic() < deadline, "Ray did not start"
            await asyncio.sleep(0.2)
