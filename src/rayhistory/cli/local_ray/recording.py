"""Record a job on a local Ray with a collector, and shut down both in order."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec

from rayhistory.cli.local_ray import subreaper
from rayhistory.cli.local_ray.local_ray import LocalRay
from rayhistory.cli.local_ray.ports import ReservedPorts
from rayhistory.cli.local_ray.stop_signals import StopSignals
from rayhistory.closed_output import write_or_discard
from rayhistory.errors import RayHistoryError
from rayhistory.sessions import SessionRef
from rayhistory.settings import Settings
from rayhistory.storage import open_store

_QUIET_S = 1.5
_MIN_SETTLE_S, _MAX_SETTLE_S = 2.5, 15.0
_LAST_RESPONSES_TIMEOUT_S = 6.0
_COLLECTOR_EXIT_TIMEOUT_S, _MARGIN_S = 60, 5
_METRICS_INTERVAL = "2s"
"""Interval of metrics samples. It is short, because recorded jobs are often short."""


class RecordingOptions(msgspec.Struct, frozen=True):
    """The command to record, the cluster's name and namespace, and how to start Ray."""

    argv: list[str]
    settings: Settings
    name: str
    namespace: str = "default"
    num_cpus: int | None = None
    ray_command: Path | None = None
    """The `ray` command of another environment; None to use the one that `find_ray` finds."""


class RecordedSession(msgspec.Struct, frozen=True):
    ref: SessionRef
    exit_code: int

    @property
    def url(self) -> str:
        return self.ref.url


class Recording(msgspec.Struct, frozen=True):
    """A running local Ray, and the port of its collector."""

    ray: LocalRay
    ref: SessionRef
    port: int

    async def settle(self) -> None:
        """Wait until Ray has sent its events to the collector."""
        await _settle(self.port)


@contextlib.asynccontextmanager
async def start_recording(options: RecordingOptions) -> AsyncIterator[Recording]:
    """Run a local Ray and a collector. Leaving the context stops both, without losing data."""
    open_store(options.settings, writable=True)
    print_status("starting Ray")
    reserved = ReservedPorts(["events"])
    port = reserved["events"]
    events_url = f"http://127.0.0.1:{port}/v1/events"
    local = LocalRay(events_url, num_cpus=options.num_cpus, ray_command=options.ray_command)
    async with local as ray, _collector(options, ray, port) as collector:
        await ray.ready()
        reserved.release()
        session = Recording(ray, SessionRef.checked(options.namespace, options.name, ray.session_name), port)
        yield session
        if collector.ended:
            raise RayHistoryError("the collector exited before the job ended: see its log messages above")
        await session.settle()
        collector.stop()  # it polls the dashboard for the last time, then waits for Ray to exit
        await _wait_for_last_responses(port)
        await ray.stop()
        try:
            exit_code = await asyncio.wait_for(collector.wait(), _COLLECTOR_EXIT_TIMEOUT_S + _MARGIN_S)
        except TimeoutError:
            exit_code = subreaper.KILLED
        if exit_code == subreaper.KILLED:
            raise RayHistoryError("the collector did not exit within a minute: check that the store is available")
        if exit_code != 0:
            raise RayHistoryError("the collector failed: see its log messages above")


async def record(options: RecordingOptions) -> RecordedSession:
    """Run the command as a submitted job, because Ray stores output and failure only for submitted jobs."""
    with StopSignals() as signals:
        async with start_recording(options) as session:
            print_status(f"Ray {session.ray.version} started, running: {_one_line(options.argv)}")
            exit_code = await _run_job(session.ray, options.argv, signals)
            print_status("job ended, uploading the rest of the session")
    return RecordedSession(session.ref, exit_code)


def _one_line(argv: list[str]) -> str:
    text = " ".join(" ".join(argv).split())
    return text if len(text) <= 100 else text[:99] + "…"


def print_status(text: str) -> None:
    write_or_discard(sys.stderr, f"rayhistory: {text}\n")


@contextlib.asynccontextmanager
async def _collector(options: RecordingOptions, ray: LocalRay, port: int) -> AsyncIterator["_Collector"]:
    settings = options.settings
    environment = {
        "RAYHISTORY_METRICS_INTERVAL": _METRICS_INTERVAL,
        **os.environ,
        "RAYHISTORY_STORE": settings.store,
        "STORAGE_BACKEND": settings.storage_backend,
        "STORAGE_BACKEND_CONFIG_PATH": settings.storage_backend_config_path,
        "STORAGE_ROOT_DIR": settings.storage_root_dir,
        "LOCAL_STORAGE_DIR": settings.local_storage_dir,
        "RAY_CLUSTER_NAME": options.name,
        "RAY_CLUSTER_NAMESPACE": options.namespace,
        "RAY_ROLE": "Head",
        "RAY_TMP_ROOT": str(ray.temp_dir),
        "RAY_COLLECTOR_EVENT_DATA_DIR": str(ray.temp_dir / "event-data"),  # removed with Ray's files
        "RAY_DASHBOARD_ADDRESS": ray.dashboard_url,
        "RAY_AUTH_MODE": "disabled",
        "EVENTS_PORT": str(port),
        "RAYHISTORY_EVENTS_HOST": "127.0.0.1",
        "RAYHISTORY_LOG_LEVEL": "warning",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", subreaper.__file__, str(_COLLECTOR_EXIT_TIMEOUT_S)),
        *(sys.executable, "-m", "rayhistory.collector.main"),
        stdin=asyncio.subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    collector = _Collector(process)
    try:
        yield collector
    finally:
        await collector.kill()


class _Collector:
    """The collector below a subreaper.

    The subreaper stops it when standard input ends, even if our process is killed.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    def stop(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def wait(self) -> int:
        return await self._process.wait()

    async def kill(self) -> None:
        """End the collector without waiting for its uploads."""
        if not self.ended:
            self._process.send_signal(signal.SIGQUIT)
            await self._process.wait()


async def _run_job(ray: LocalRay, argv: list[str], signals: StopSignals) -> int:
    """Run the job and return its exit code. A signal stops the job, and its session is still recorded."""
    job = await ray.submit(argv)
    stop = signals.defer()
    output = asyncio.create_task(_print_output(ray, job))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({output, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if stop.is_set():
        print_status("stopping the job (a second signal discards the rest of the session)")
        await ray.stop_job(job)
    details = await ray.wait(job)
    await output
    stopped.cancel()
    return signals.exit_code if stop.is_set() else _exit_code(details)


async def _print_output(ray: LocalRay, job: str) -> None:
    async for text in ray.follow_output(job):
        write_or_discard(sys.stdout, text)


def _exit_code(details: dict[str, Any]) -> int:
    code = details.get("driver_exit_code")
    if isinstance(code, int):
        return code
    if details["status"] != "SUCCEEDED":
        print_status(f"job {details['status'].lower()}: {details.get('message') or 'no message from Ray'}")
    return 0 if details["status"] == "SUCCEEDED" else 1


async def _settle(port: int) -> None:
    """Wait until no events have arrived for a while, because Ray sends them in batches every second or two."""
    started = last_change = time.monotonic()
    previous = -1.0
    while (now := time.monotonic()) - started < _MAX_SETTLE_S:
        received = await _metric(port, "rayhistory_collector_events_received_total")
        if received != previous:
            previous, last_change = received, now
        if now - started > _MIN_SETTLE_S and now - last_change > _QUIET_S:
            return
        await asyncio.sleep(0.25)


async def _wait_for_last_responses(port: int) -> None:
    """Wait for the collector's last poll of the dashboard, after which Ray may exit."""
    deadline = time.monotonic() + _LAST_RESPONSES_TIMEOUT_S
    while await _metric(port, "rayhistory_collector_last_dashboard_responses_stored") < 1:
        if time.monotonic() > deadline:
            return
        await asyncio.sleep(0.1)


async def _metric(port: int, name: str) -> float:
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=5) as http:
            response = await http.get(f"http://127.0.0.1:{port}/metrics")
    except httpx.HTTPError:
        return 0.0
    values = [float(line.rsplit(" ", 1)[1]) for line in response.text.splitlines() if line.startswith(name)]
    return sum(values)
