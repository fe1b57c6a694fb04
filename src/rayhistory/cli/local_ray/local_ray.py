"""A private Ray cluster of one node, on loopback.

`rayhistory run`, `make run` and the tests need a real Ray that exports to a collector, is isolated from any other Ray
on the machine, and leaves no files or processes. It runs as a child process, because importing Ray is slow and needs
much memory.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from rayhistory.cli.local_ray.job_client import JobClient
from rayhistory.cli.local_ray.ray_head import RayHead, find_ray, ray_version
from rayhistory.errors import RayHistoryError, UsageError

# The path of a Unix socket has at most 107 bytes, and Ray creates its sockets this far below its temp dir.
_MAX_TEMP_DIR_LENGTH = 107 - len("/session_2000-01-01_00-00-00_000000_4194304/sockets/plasma_store")

_MAX_START_ATTEMPTS = 3


class LocalRay:
    """A local Ray: `async with LocalRay(events_url=…) as ray: await ray.ready()`.

    `temp_dir` is set at once, `dashboard_url` after `start`, and `session_name` and `session_dir` after `ready`. If
    another program took one of Ray's ports, `ready` restarts Ray with another `dashboard_url`.

    Leaving the context stops Ray and removes its files. To read them after Ray's end, call `stop` first.
    """

    def __init__(
        self,
        events_url: str,
        *,
        num_cpus: int | None = None,
        temp_dir: Path | None = None,
        ray_command: Path | None = None,
        stop_grace: float = 10.0,
    ) -> None:
        self.events_url = events_url
        self.num_cpus = num_cpus
        self.temp_dir = temp_dir or Path(tempfile.gettempdir()) / f"rh-{secrets.token_hex(4)}"
        self.version = ""
        self.dashboard_url = ""
        self.session_name = ""
        self._ray_command = ray_command
        self._stop_grace = stop_grace
        self._owns_temp_dir = False
        self._head: RayHead | None = None
        self._jobs: JobClient | None = None

    @property
    def session_dir(self) -> Path:
        return self.temp_dir / self.session_name

    @property
    def jobs(self) -> JobClient:
        if self._jobs is None:
            raise RayHistoryError(f"Ray is not running at {self.dashboard_url or self.temp_dir}: start it first")
        return self._jobs

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        try:
            await self.stop()
        finally:
            self.cleanup()

    async def start(self) -> None:
        """Start Ray without waiting until it is ready."""
        if len(os.fsencode(self.temp_dir)) > _MAX_TEMP_DIR_LENGTH:
            raise UsageError(
                f"{self.temp_dir} is too long for Ray's socket paths: use a directory of at most "
                f"{_MAX_TEMP_DIR_LENGTH} characters"
            )
        command = find_ray(self._ray_command)
        self.version = await ray_version(command)
        if not self.temp_dir.exists():
            self.temp_dir.mkdir(mode=0o700, parents=True)
            self._owns_temp_dir = True
        self._head = await RayHead.start(
            command,
            self.version,
            temp_dir=self.temp_dir,
            events_url=self.events_url,
            num_cpus=self.num_cpus,
            stop_grace=self._stop_grace,
        )
        self.dashboard_url = self._head.dashboard_url

    async def ready(self, timeout: float = 90.0) -> None:  # noqa: ASYNC109
        """Wait until the dashboard responds and its agent accepts jobs."""
        for attempt in range(1, _MAX_START_ATTEMPTS + 1):
            head = self._running_head()
            problem = "exited while starting"
            try:
                async with asyncio.timeout(timeout):
                    session_name = await _session_name(head)
            except TimeoutError:
                session_name, problem = None, f"did not respond within {timeout:g} s"
            if session_name is not None:
                self.session_name = session_name
                self._jobs = JobClient(head.dashboard_url)
                return
            output_tail = head.output_tail()
            await self.stop()
            if attempt == _MAX_START_ATTEMPTS or not head.ports.any_taken():
                raise RayHistoryError(f"Ray {self.version} {problem}:\n{output_tail}")
            self._remove_sessions()
            await self.start()

    async def stop(self) -> None:
        """Stop Ray and every process that it or its jobs started. Files stay."""
        if self._jobs is not None:
            await self._jobs.close()
            self._jobs = None
        if self._head is not None:
            await self._head.stop()

    def cleanup(self) -> None:
        """Remove Ray's files, unless the directory existed before."""
        if self._owns_temp_dir:
            shutil.rmtree(self.temp_dir, ignore_errors=True)

    async def submit(
        self,
        argv: Sequence[str],
        submission_id: str | None = None,
        env_vars: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        """Submit a command as a Ray job in the current working directory. Return its submission id."""
        return await self.jobs.submit(argv, submission_id, env_vars, metadata)

    def follow_output(self, submission_id: str) -> AsyncIterator[str]:
        return self.jobs.follow_output(submission_id)

    async def wait(self, submission_id: str) -> dict[str, Any]:
        return await self.jobs.wait(submission_id)

    async def stop_job(self, submission_id: str) -> None:
        await self.jobs.stop(submission_id)

    def output_tail(self) -> str:
        """Return the last lines of the output of `ray start`."""
        return self._head.output_tail() if self._head else ""

    def _running_head(self) -> RayHead:
        if self._head is None:
            raise RayHistoryError("Ray was not started")
        return self._head

    def _remove_sessions(self) -> None:
        for path in self.temp_dir.glob("session_*"):
            if path.is_symlink():
                path.unlink()
            else:
                shutil.rmtree(path, ignore_errors=True)


async def _session_name(head: RayHead) -> str | None:
    """Return the session name once dashboard and agent respond; None if the process exits before."""
    async with httpx.AsyncClient(timeout=5, trust_env=False) as http:
        version = await _wait_for(http, head, f"{head.dashboard_url}/api/version")
        agent = await _wait_for(http, head, f"{head.agent_url}/api/local_raylet_healthz")
    return str(version.json()["session_name"]) if version and agent else None


async def _wait_for(http: httpx.AsyncClient, head: RayHead, url: str) -> httpx.Response | None:
    while not head.ended:
        with contextlib.suppress(httpx.HTTPError):
            response = await http.get(url)
            if response.is_success:
                return response
        await asyncio.sleep(0.1)
    return None
