"""Client of Ray's job API: submit a job, follow its output, wait for its end.

Ray's own client would import all of Ray into our process.
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
_POLL_INTERVAL_S = 0.5


class JobClient:
    """Jobs of the cluster whose dashboard is at `dashboard_url`."""

    def __init__(self, dashboard_url: str) -> None:
        self.dashboard_url = dashboard_url.rstrip("/")
        # The cluster is on this machine: proxies of the environment must not be used.
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
        response = await self._call("POST", "/api/jobs/", json=request)
        return str(response["submission_id"])

    async def details(self, submission_id: str) -> dict[str, Any]:
        return await self._call("GET", f"/api/jobs/{submission_id}")

    async def wait(self, submission_id: str) -> dict[str, Any]:
        """Wait for the end of the job and return Ray's JobDetails: `status`, `message`, `driver_exit_code` and more."""
        while True:
            details = await self.details(submission_id)
            if details["status"] in TERMINAL:
                return details
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def stop(self, submission_id: str) -> None:
        """Ask Ray to stop the job. `wait` returns when it has ended."""
        await self._call("POST", f"/api/jobs/{submission_id}/stop")

    async def follow_output(self, submission_id: str) -> AsyncIterator[str]:
        """Yield the job's output as it is written, each character once, until the job has ended."""
        received = 0
        complete = False
        while True:
            # A new connection starts at the first character again.
            skip = received
            try:
                async for chunk in self._tail(submission_id):
                    fresh, skip = chunk[skip:], max(0, skip - len(chunk))
                    received += len(fresh)
                    if fresh:
                        yield fresh
                complete = True
            except (WebSocketException, OSError):
                complete = False
            if (await self.details(submission_id))["status"] in TERMINAL:
                break
            await asyncio.sleep(_POLL_INTERVAL_S)
        if not complete:
            yield (await self._output(submission_id))[received:]

    async def _tail(self, submission_id: str) -> AsyncIterator[str]:
        url = f"ws{self.dashboard_url.removeprefix('http')}/api/jobs/{submission_id}/logs/tail"
        # Ray's dashboard closes the connection if the client offers compression, and does not reply to pings.
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
            raise RayHistoryError(f"{call} returned {response.status_code}: {response.text.strip()}")
        body: dict[str, Any] = response.json()
        return body
