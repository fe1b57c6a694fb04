"""Snapshot of a running cluster without a collector: store its dashboard responses and logs as a session."""

import asyncio
import gzip
import re
import tempfile
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from rayhistory.archive.registration import SNAPSHOT, SessionOrigin, register_session
from rayhistory.archive.transfer import Transfer
from rayhistory.collector.dashboard import schedule
from rayhistory.collector.dashboard.poller import library_uris
from rayhistory.collector.dashboard.response_record import dashboard_response_record
from rayhistory.collector.dashboard_client import DashboardClient, DashboardError
from rayhistory.errors import HeadUnavailable, StoreError
from rayhistory.events.state_api import is_truncated
from rayhistory.sessions import Layout, NodeSeal, SessionRef
from rayhistory.sessions.keys import DASHBOARD_RESPONSES
from rayhistory.sessions.ref import is_session_name, session_start_time
from rayhistory.settings import Settings
from rayhistory.storage import Store

_LIST_PARAMS = "detail=1&limit=10000"
_TASKS = f"/api/v0/tasks?{_LIST_PARAMS}&exclude_driver=false"
_NODES = f"/api/v0/nodes?{_LIST_PARAMS}"
_URIS = (
    schedule.JOBS, _NODES, f"/api/v0/actors?{_LIST_PARAMS}", f"/api/v0/workers?{_LIST_PARAMS}",
    schedule.PLACEMENT_GROUPS, "/api/v0/cluster_metadata", "/timezone", "/api/cluster_status?format=1",
    schedule.GRAFANA,
)  # fmt: skip
_NODE_ID = re.compile(r"[0-9a-f]{56}\Z")


class CaptureResult(msgspec.Struct):
    responses: int = 0
    errors: list[str] = []
    """Failed requests, with the reason."""
    tasks: int = 0
    files: int = 0
    size: int = 0
    truncated: list[str] = []
    """Log files of which only the beginning was stored, because they are larger than the limit."""


class _LogFilesByKind(msgspec.Struct):
    result: dict[str, list[Any]]


class _LogFiles(msgspec.Struct):
    data: _LogFilesByKind


class DashboardCapture:
    """Captures one cluster. At most `log_limit` bytes of each log file are stored."""

    def __init__(self, settings: Settings, store: Store, layout: Layout, *, log_limit: int) -> None:
        self.session = ""
        self.ray_version = ""
        self._dashboard = DashboardClient(settings, "", lambda: None)
        self._store = store
        self._layout = layout
        self._log_limit = log_limit
        self._result = CaptureResult()
        self._lines: list[bytes] = []
        self._ref = SessionRef("", "", "")

    async def close(self) -> None:
        await self._dashboard.close()

    async def begin(self) -> str:
        """Connect to the dashboard and return the name of the cluster's session."""
        address = self._dashboard.address
        try:
            version = msgspec.json.decode(await self._dashboard.get(schedule.VERSION), type=dict[str, Any])
            self.ray_version = str(version["ray_version"])
        except DashboardError as error:
            raise HeadUnavailable(
                f"no Ray dashboard responds at {address} ({error}); if it requires a token, set RAY_AUTH_TOKEN"
            ) from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError):
            raise HeadUnavailable(f"{address} is not a Ray dashboard") from None
        name = version.get("session_name")
        has_name = isinstance(name, str) and is_session_name(name)
        self.session = str(name) if has_name else f"session_{datetime.now(UTC):%Y-%m-%d_%H-%M-%S_%f}"
        return self.session

    async def run(self, ref: SessionRef, progress: Callable[[int, int], None]) -> CaptureResult:
        self._ref = ref
        nodes = await self._capture_responses()
        head = next((node["node_id"] for node in nodes if node.get("is_head_node")), nodes[0]["node_id"])
        now = datetime.now(UTC)
        data = await asyncio.to_thread(gzip.compress, b"".join(self._lines))
        now_ns = int(now.timestamp() * 10**9)
        seals = []
        alive = [node["node_id"] for node in nodes if node.get("state") == "ALIVE"]
        with tempfile.TemporaryDirectory(prefix="rayhistory-snapshot-") as scratch:
            transfer = Transfer(self._store, self._store, Path(scratch))
            await transfer.put(self._layout.events_key(ref, head, DASHBOARD_RESPONSES, now_ns, compressed=True), data)
            for number, node in enumerate(alive if self._log_limit else []):
                seals.append(await self._store_logs(transfer, node))
                progress(number + 1, len(alive))
        started = min((node["start_time_ms"] for node in nodes if node.get("start_time_ms")), default=0)
        named = session_start_time(ref.session)
        origin = SessionOrigin(
            started_ms=started or int((named or now).timestamp() * 1000),
            ended_ms=now_ns // 10**6,
            reason=SNAPSHOT,
            node_id=head,
            ray_version=self.ray_version,
            dashboard_address=self._dashboard.address,
        )
        await register_session(self._store, self._layout, ref, origin, seals)
        return self._result

    # Dashboard responses

    async def _capture_responses(self) -> list[dict[str, Any]]:
        """Capture all dashboard responses and return the cluster's nodes."""
        await self._capture(schedule.VERSION)
        responses = {uri: await self._capture(uri) for uri in _URIS}
        nodes = [node for node in _rows(responses[_NODES]) if _NODE_ID.match(str(node.get("node_id")))]
        if not nodes:
            raise HeadUnavailable(f"the dashboard at {self._dashboard.address} lists no nodes")
        jobs = _dicts(responses[schedule.JOBS])
        await self._capture_tasks([job["job_id"] for job in jobs if job.get("job_id")])
        actors = await self._capture(schedule.ACTORS)
        await self._capture(schedule.NODES)
        for node in nodes:
            if node.get("state") == "ALIVE":
                await self._capture(f"/nodes/{node['node_id']}")
        for uri in library_uris(actors, jobs):
            await self._capture(uri)
        return nodes

    async def _capture_tasks(self, jobs: list[str]) -> None:
        """Capture the list of all tasks. If the dashboard truncates it, capture one list of tasks per job instead."""
        body = await self._get(_TASKS)
        if body is None:
            return
        response = _decode(body)
        if len(jobs) < 2 or not _rows(response) or not is_truncated(response):
            self._store_response(_TASKS, body)
            return
        for job in jobs:
            await self._capture(f"{_TASKS}&filter_keys=job_id&filter_predicates=%3D&filter_values={job}")

    async def _capture(self, uri: str) -> Any:
        body = await self._get(uri)
        return self._store_response(uri, body) if body is not None else None

    async def _get(self, uri: str) -> bytes | None:
        try:
            return await self._dashboard.get(schedule.Poll(uri, 0.0).request)
        except DashboardError as error:
            if uri != schedule.GRAFANA:  # most clusters have no Grafana
                self._result.errors.append(f"{uri}: {error}")
            return None

    def _store_response(self, uri: str, body: bytes) -> Any:
        self._lines.append(dashboard_response_record(self.session, "", uri, body, only=True))
        self._result.responses += 1
        response = _decode(body)
        if response is None:
            self._result.errors.append(f"{uri}: unreadable response")
        if uri.startswith("/api/v0/tasks"):
            self._result.tasks += len(_rows(response))
        return response

    # Logs

    async def _store_logs(self, transfer: Transfer, node: str) -> NodeSeal:
        incomplete: list[str] = []
        for name in await self._log_files(node):
            try:
                if await self._store_log(transfer, node, name):
                    continue
                self._result.truncated.append(name)
            except (DashboardError, StoreError) as error:
                self._result.errors.append(f"log {name} of {node[:8]}…: {error}")
            incomplete.append(name)
        return NodeSeal(node, int(datetime.now(UTC).timestamp() * 1000), left_behind=incomplete[:100])

    async def _log_files(self, node: str) -> list[str]:
        uri = f"/api/v0/logs?node_id={node}&glob={quote('**/*')}"
        body = await self._get(uri)
        if body is None:
            return []
        try:
            found = msgspec.json.decode(body, type=_LogFiles).data.result
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._result.errors.append(f"{uri}: unreadable response")
            return []
        names = {name for names in found.values() for name in names if isinstance(name, str)}
        return sorted(name for name in names if not name.endswith("/"))

    async def _store_log(self, transfer: Transfer, node: str, name: str) -> bool:
        """Store a log file. Return whether it is complete.

        The start of a large file is stored, so that offsets of tasks stay valid.
        """
        uri = f"/api/v0/logs/file?node_id={node}&filename={quote(name)}&lines=-1"
        key = self._layout.log_key(self._ref, node, name)
        async with aclosing(self._dashboard.stream(uri)) as chunks:
            size, complete = await transfer.put_chunks(key, chunks, self._log_limit)
        self._result.files += 1
        self._result.size += size
        return complete


def _decode(body: bytes) -> Any:
    """Decode a body; None if it is not JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _rows(response: Any) -> list[dict[str, Any]]:
    """Return the rows of a list response of the state API."""
    try:
        return _dicts(response["data"]["result"]["result"])
    except (KeyError, TypeError):
        return []


def _dicts(rows: Any) -> list[dict[str, Any]]:
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
