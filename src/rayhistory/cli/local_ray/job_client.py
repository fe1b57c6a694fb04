"""Submits a job to a running Ray cluster and follows it to its end, over the dashboard's HTTP API.

Ray's own client would import all of Ray into our process; the few calls that we need are plain HTTP.
"""

import asyncio
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from rayhistory.errors import RayHistoryError

TERMINAL = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
_POLL_SECONDS = 0.5


class JobClient:
    """The jobs of the cluster whose dashboard is at `dashboard_url`."""

    def __init__(self, dashboard_url: str) -> None:
        self.dashboard_url = dashboard_url.rstrip("/")
        # The cluster is on this machine: a proxy from the environment would be in the way.
        self._http = httpx.AsyncClient(base_url=self.dashboard_url, timeout=60, trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def submit(
        self,
        argv: Sequence[str],
        submission_id: str | None = None,
        env_vars: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        request = {
            "entrypoint": shlex.join(argv),
            "submission_id": submission_id,
            "runtime_env": {"env_vars": dict(env_vars)} if env_vars else {},
            "metadata": dict(metadata or {}),
        }
        answer = await self._call("POST", "/api/jobs/", json=request)
        return str(answer["submission_id"])

    async def details(self, submission_id: str) -> dict[str, Any]:
        return await self._call("GET", f"/api/jobs/{submission_id}")

    async def wait(self, submission_id: str) -> dict[str, Any]:
        """Ray's JobDetails of the job when it has ended: `status`, `message`, `driver_exit_code` and more."""
        while True:
            details = await self.details(submission_id)
            if details["status"] in TERMINAL:
                return details
            await asyncio.sleep(_POLL_SECONDS)

    async def stop(self, submission_id: str) -> None:
        """Ask for the job's end; `wait` tells when it has come."""
        await self._call("POST", f"/api/jobs/{submission_id}/stop")

    async def follow_output(self, submission_id: str) -> AsyncIterator[str]:
        """The job's output as it is written, each character once, until the job has ended."""
        seen = 0
        whole = False
        while True:
            # A new connection begins at the first character again.
            skip = seen
            try:
                async for chunk in self._tail(submission_id):
                    fresh, skip = chunk[skip:], max(0, skip - len(chunk))
                    seen += len(fresh)
                    if fresh:
                        yield fresh
                whole = True
            except (WebSocketException, OSError):
                whole = False
            if (await self.details(submission_id))["status"] in TERMINAL:
                break
            await asyncio.sleep(_POLL_SECONDS)
        if not whole:
            yield (await self._output(submission_id))[seen:]

    async def _tail(self, submission_id: str) -> AsyncIterator[str]:
        url = f"ws{self.dashboard_url.removeprefix('http')}/api/jobs/{submission_id}/logs/tail"
        # Ray's dashboard closes at once, and cleanly, on a client that offers to compress, and answers no pings.
        async with connect(url, compression=None, ping_interval=None, proxy=None, max_size=None) as socket:
            async for message in socket:
                yield message if isinstance(message, str) else message.decode(errors="replace")

    async def _output(self, submission_id: str) -> str:
        return str((await self._call("GET", f"/api/jobs/{submission_id}/logs"))["logs"])

    async def _call(self, method: str, path: str, json: object = None) -> dict[str, Any]:
        call = f"{method} {self.dashboard_url}{path}"
        try:
            response = await self._http.request(method, path, json=json)
        except httpx.HTTPError as error:
            raise RayHistoryError(f"{call} failed: {error!r}") from error
        if response.is_error:
            raise RayHistoryError(f"{call} answered {response.status_code}: {response.text.strip()}")
        answer: dict[str, Any] = response.json()
        return answer
