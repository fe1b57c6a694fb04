"""A running cluster that never had a collector: everything that its dashboard can tell now becomes a session."""

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

from rayhistory.collector import schedule
from rayhistory.collector.dashboard import Dashboard, DashboardError
from rayhistory.collector.snapshots import library_questions, snapshot_line
from rayhistory.errors import RayHistoryError, StoreError
from rayhistory.events.stateapi import is_cut_short
from rayhistory.keeping.records import SNAPSHOT, Origin, make_known
from rayhistory.keeping.transfer import Transfer
from rayhistory.layout import Layout, NodeSeal, SessionRef
from rayhistory.layout.keys import SNAPSHOTS
from rayhistory.layout.session import is_session_name, session_time
from rayhistory.settings import Settings
from rayhistory.storage import Store

_LIST = "detail=1&limit=10000"
_TASKS = f"/api/v0/tasks?{_LIST}&exclude_driver=false"
_NODES = f"/api/v0/nodes?{_LIST}"
_QUESTIONS = (
    schedule.JOBS, _NODES, f"/api/v0/actors?{_LIST}", f"/api/v0/workers?{_LIST}", schedule.PLACEMENT_GROUPS,
    "/api/v0/cluster_metadata", "/timezone", "/api/cluster_status?format=1", schedule.GRAFANA,
)  # fmt: skip
_NODE_ID = re.compile(r"[0-9a-f]{56}\Z")


class NoDashboard(RayHistoryError):
    """Nothing, or something else, is at the address."""


class Look(msgspec.Struct):
    """What the dashboard told."""

    answers: int = 0
    unanswered: list[str] = []
    """Questions that it did not answer, and why."""
    tasks: int = 0
    files: int = 0
    size: int = 0
    cut: list[str] = []
    """Log files that were too large to be kept whole."""


class _ByKind(msgspec.Struct):
    result: dict[str, list[Any]]


class _LogFiles(msgspec.Struct):
    data: _ByKind


class Looking:
    """`log_limit` is how much of each log file is kept."""

    def __init__(self, settings: Settings, store: Store, layout: Layout, *, log_limit: int) -> None:
        self.session = ""
        self.ray_version = ""
        self._dashboard = Dashboard(settings, "", lambda: None)
        self._store = store
        self._layout = layout
        self._log_limit = log_limit
        self._look = Look()
        self._lines: list[bytes] = []
        self._ref = SessionRef("", "", "")

    async def close(self) -> None:
        await self._dashboard.close()

    async def begin(self) -> str:
        """The name of the cluster's session."""
        address = self._dashboard.address
        try:
            version = msgspec.json.decode(await self._dashboard.get(schedule.VERSION), type=dict[str, Any])
            self.ray_version = str(version["ray_version"])
        except DashboardError as error:
            reason = {"authentication": "it wants a token: set RAY_AUTH_TOKEN", "no token": "set RAY_AUTH_TOKEN"}
            raise NoDashboard(f"{address}: no dashboard answers ({reason.get(str(error), str(error))})") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError):
            raise NoDashboard(f"{address}: what answers there is not Ray's dashboard") from None
        told = version.get("session_name")
        known = isinstance(told, str) and is_session_name(told)
        self.session = str(told) if known else f"session_{datetime.now(UTC):%Y-%m-%d_%H-%M-%S_%f}"
        return self.session

    async def run(self, ref: SessionRef, progress: Callable[[int, int], None]) -> Look:
        self._ref = ref
        nodes = await self._ask_all()
        head = next((node["node_id"] for node in nodes if node.get("is_head_node")), nodes[0]["node_id"])
        now = datetime.now(UTC)
        data = await asyncio.to_thread(gzip.compress, b"".join(self._lines))
        now_ns = int(now.timestamp() * 10**9)
        seals = []
        alive = [node["node_id"] for node in nodes if node.get("state") == "ALIVE"]
        with tempfile.TemporaryDirectory(prefix="rayhistory-snapshot-") as scratch:
            transfer = Transfer(self._store, self._store, Path(scratch))
            await transfer.put(self._layout.events_key(ref, head, SNAPSHOTS, now_ns, compressed=True), data)
            for number, node in enumerate(alive if self._log_limit else []):
                seals.append(await self._keep_logs(transfer, node))
                progress(number + 1, len(alive))
        started = min((node["start_time_ms"] for node in nodes if node.get("start_time_ms")), default=0)
        named = session_time(ref.session)
        origin = Origin(
            started_ms=started or int((named or now).timestamp() * 1000),
            ended_ms=now_ns // 10**6,
            reason=SNAPSHOT,
            node_id=head,
            ray_version=self.ray_version,
            dashboard_address=self._dashboard.address,
        )
        await make_known(self._store, self._layout, ref, origin, seals)
        return self._look

    # Questions

    async def _ask_all(self) -> list[dict[str, Any]]:
        """The cluster's nodes, when everything was asked."""
        await self._ask(schedule.VERSION)
        answers = {uri: await self._ask(uri) for uri in _QUESTIONS}
        nodes = [node for node in _rows(answers[_NODES]) if _NODE_ID.match(str(node.get("node_id")))]
        if not nodes:
            raise NoDashboard(f"{self._dashboard.address}: the dashboard does not say which nodes there are")
        jobs = _dicts(answers[schedule.JOBS])
        await self._ask_for_tasks([job["job_id"] for job in jobs if job.get("job_id")])
        actors = await self._ask(schedule.ACTORS)
        await self._ask(schedule.NODES)
        for node in nodes:
            if node.get("state") == "ALIVE":
                await self._ask(f"/nodes/{node['node_id']}")
        for uri in library_questions(actors, jobs):
            await self._ask(uri)
        return nodes

    async def _ask_for_tasks(self, jobs: list[str]) -> None:
        """Of all jobs at once; if that is more than is listed, of each by itself."""
        body = await self._get(_TASKS)
        if body is None:
            return
        answer = _decoded(body)
        if len(jobs) < 2 or not _rows(answer) or not is_cut_short(answer):
            self._keep(_TASKS, body)
            return
        for job in jobs:
            await self._ask(f"{_TASKS}&filter_keys=job_id&filter_predicates=%3D&filter_values={job}")

    async def _ask(self, uri: str) -> Any:
        body = await self._get(uri)
        return self._keep(uri, body) if body is not None else None

    async def _get(self, uri: str) -> bytes | None:
        try:
            return await self._dashboard.get(schedule.Question(uri, 0.0).request)
        except DashboardError as error:
            if uri != schedule.GRAFANA:  # few have one
                self._look.unanswered.append(f"{uri}: {error}")
            return None

    def _keep(self, uri: str, body: bytes) -> Any:
        self._lines.append(snapshot_line(self.session, "", uri, body, only=True))
        self._look.answers += 1
        answer = _decoded(body)
        if answer is None:
            self._look.unanswered.append(f"{uri}: what it answers cannot be read")
        if uri.startswith("/api/v0/tasks"):
            self._look.tasks += len(_rows(answer))
        return answer

    # Logs

    async def _keep_logs(self, transfer: Transfer, node: str) -> NodeSeal:
        left: list[str] = []
        for name in await self._log_files(node):
            try:
                if await self._keep_log(transfer, node, name):
                    continue
                self._look.cut.append(name)
            except (DashboardError, StoreError) as error:
                self._look.unanswered.append(f"log {name} of {node[:8]}…: {error}")
            left.append(name)
        return NodeSeal(node, int(datetime.now(UTC).timestamp() * 1000), left_behind=left[:100])

    async def _log_files(self, node: str) -> list[str]:
        uri = f"/api/v0/logs?node_id={node}&glob={quote('**/*')}"
        body = await self._get(uri)
        if body is None:
            return []
        try:
            found = msgspec.json.decode(body, type=_LogFiles).data.result
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._look.unanswered.append(f"{uri}: what it answers cannot be read")
            return []
        names = {name for names in found.values() for name in names if isinstance(name, str)}
        return sorted(name for name in names if not name.endswith("/"))

    async def _keep_log(self, transfer: Transfer, node: str, name: str) -> bool:
        """Whether that was all: of a file that is too large its beginning is kept, where the places that tasks name in
        it are right."""
        uri = f"/api/v0/logs/file?node_id={node}&filename={quote(name)}&lines=-1"
        key = self._layout.log_key(self._ref, node, name)
        async with aclosing(self._dashboard.stream(uri)) as pieces:
            kept, whole = await transfer.put_pieces(key, pieces, self._log_limit)
        self._look.files += 1
        self._look.size += kept
        return whole


def _decoded(body: bytes) -> Any:
    """None for what is no JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _rows(answer: Any) -> list[dict[str, Any]]:
    """Of a list of the state API."""
    try:
        return _dicts(answer["data"]["result"]["result"])
    except (KeyError, TypeError):
        return []


def _dicts(rows: Any) -> list[dict[str, Any]]:
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
