"""Recording one job: a local Ray, a collector beside it, the job's output on the terminal, and a clean end of both."""

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

from rayhistory.cli.localray import LocalRay
from rayhistory.cli.ports import ReservedPorts
from rayhistory.errors import RayHistoryError
from rayhistory.layout import SessionRef
from rayhistory.settings import Settings
from rayhistory.storage import open_store

_QUIET = 1.5
_SETTLE_AT_LEAST, _SETTLE_AT_MOST = 2.5, 15.0
_INTERRUPTED = 130


class Wish(msgspec.Struct, frozen=True):
    """What is to be recorded, and under which name."""

    argv: list[str]
    settings: Settings
    name: str
    namespace: str = "default"
    num_cpus: int | None = None
    ray_command: Path | None = None
    """The `ray` of another environment."""


class Recorded(msgspec.Struct, frozen=True):
    ref: SessionRef
    exit_code: int

    @property
    def url(self) -> str:
        return self.ref.url


class Recording(msgspec.Struct, frozen=True):
    """A local Ray that is up, and the port of the collector beside it."""

    ray: LocalRay
    ref: SessionRef
    port: int

    async def settle(self) -> None:
        """Waits until what has happened so far has reached the collector."""
        await _settle(self.port)


@contextlib.asynccontextmanager
async def recording(wish: Wish) -> AsyncIterator[Recording]:
    """A local Ray and a collector beside it; leaving the block ends both, in the order in which nothing is lost."""
    open_store(wish.settings, writable=True)
    say("starting Ray")
    reserved = ReservedPorts(["events"])
    port = reserved["events"]
    events_url = f"http://127.0.0.1:{port}/v1/events"
    local = LocalRay(events_url, num_cpus=wish.num_cpus, ray_command=wish.ray_command)
    async with local as ray, _collector(wish, ray, port) as collector:
        await ray.ready()
        reserved.release()
        session = Recording(ray, SessionRef.checked(wish.namespace, wish.name, ray.session_name), port)
        yield session
        if collector.returncode is not None:
            raise RayHistoryError("the collector ended before the job did: what it said is above")
        await session.settle()
        collector.send_signal(signal.SIGTERM)  # it takes the dashboard's last answers, then waits for Ray's end
        await _last_answers_taken(port)
        await ray.stop()
        try:
            ended = await asyncio.wait_for(collector.wait(), 60)
        except TimeoutError:
            raise RayHistoryError("the collector did not end within a minute: the store may be away") from None
        if ended != 0:
            raise RayHistoryError("the collector ended with an error: what it said is above")


async def record(wish: Wish) -> Recorded:
    """Runs the command as a submitted job: Ray keeps the output and the failure of those, not of plain drivers."""
    async with recording(wish) as session:
        say(f"Ray {session.ray.version} is up, running: {_one_line(wish.argv)}")
        exit_code = await _run_job(session.ray, wish.argv)
        say("keeping what is still on its way")
    return Recorded(session.ref, exit_code)


def _one_line(argv: list[str]) -> str:
    text = " ".join(" ".join(argv).split())
    return text if len(text) <= 100 else text[:99] + "…"


def say(text: str) -> None:
    sys.stderr.write(f"rayhistory: {text}\n")
    sys.stderr.flush()


@contextlib.asynccontextmanager
async def _collector(wish: Wish, ray: LocalRay, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    settings = wish.settings
    environment = {
        **os.environ,
        "RAYHISTORY_STORE": settings.store,
        "STORAGE_BACKEND": settings.storage_backend,
        "STORAGE_BACKEND_CONFIG_PATH": settings.storage_backend_config_path,
        "STORAGE_ROOT_DIR": settings.storage_root_dir,
        "LOCAL_STORAGE_DIR": settings.local_storage_dir,
        "RAY_CLUSTER_NAME": wish.name,
        "RAY_CLUSTER_NAMESPACE": wish.namespace,
        "RAY_ROLE": "Head",
        "RAY_TMP_ROOT": str(ray.temp_dir),
        "RAY_DASHBOARD_ADDRESS": ray.dashboard_url,
        "RAY_AUTH_MODE": "disabled",
        "EVENTS_PORT": str(port),
        "RAYHISTORY_EVENTS_HOST": "127.0.0.1",
        "RAYHISTORY_LOG_LEVEL": "warning",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rayhistory.collector.main", env=environment, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _run_job(ray: LocalRay, argv: list[str]) -> int:
    """The job's exit code; Ctrl-C ends the job, and what it did is kept all the same."""
    job = await ray.submit(argv)
    interrupted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    following = asyncio.create_task(_show(ray, job))
    waiting = asyncio.create_task(interrupted.wait())
    await asyncio.wait({following, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if interrupted.is_set():
        say("stopping the job")
        await ray.stop_job(job)
    details = await ray.wait(job)
    await following
    waiting.cancel()
    asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
    return _INTERRUPTED if interrupted.is_set() else _exit_code(details)


async def _show(ray: LocalRay, job: str) -> None:
    async for text in ray.follow_output(job):
        sys.stdout.write(text)
        sys.stdout.flush()


def _exit_code(details: dict[str, Any]) -> int:
    code = details.get("driver_exit_code")
    if isinstance(code, int):
        return code
    if details["status"] != "SUCCEEDED":
        say(f"the job {details['status'].lower()}: {details.get('message') or 'Ray gave no reason'}")
    return 0 if details["status"] == "SUCCEEDED" else 1


async def _settle(port: int) -> None:
    """Waits until Ray has sent what it holds back for a second or two: until no event came for a while."""
    began = changed = time.monotonic()
    seen = -1.0
    while (now := time.monotonic()) - began < _SETTLE_AT_MOST:
        received = await _metric(port, "rayhistory_collector_events_received_total")
        if received != seen:
            seen, changed = received, now
        if now - began > _SETTLE_AT_LEAST and now - changed > _QUIET:
            return
        await asyncio.sleep(0.25)


async def _last_answers_taken(port: int) -> None:
    """Ray may go when the collector has asked its dashboard for the last time."""
    deadline = time.monotonic() + 6
    while await _metric(port, "rayhistory_collector_last_answers_taken") < 1:
        if time.monotonic() > deadline:
            return
        await asyncio.sleep(0.1)


async def _metric(port: int, name: str) -> float:
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=5) as http:
            answer = await http.get(f"http://127.0.0.1:{port}/metrics")
    except httpx.HTTPError:
        return 0.0
    values = [float(line.rsplit(" ", 1)[1]) for line in answer.text.splitlines() if line.startswith(name)]
    return sum(values)
