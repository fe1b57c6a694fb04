"""Poll the head's dashboard, and store each response that has changed."""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from rayhistory.collector.dashboard.new_spans import NewSpans
from rayhistory.collector.dashboard.response_record import dashboard_response_record, response_digest
from rayhistory.collector.dashboard.schedule import (
    ACTORS,
    DATASETS,
    GRAFANA,
    JOBS,
    NODES,
    SERVE,
    TASK_SPANS,
    TRAIN,
    VERSION,
    Poll,
    PollSchedule,
)
from rayhistory.collector.dashboard_client import DashboardClient, DashboardError, DashboardFailure
from rayhistory.collector.ingest.driver_watch import SILENT_AFTER_S, DriverWatch
from rayhistory.collector.session.session_record import SessionRecord
from rayhistory.collector.spool.block import Block
from rayhistory.collector.spool.spool import Spool, SpoolError
from rayhistory.collector.supervise import backoff_delays
from rayhistory.collector.telemetry import Telemetry
from rayhistory.errors import StoreError
from rayhistory.ray_env import ALL_SPANS_SINCE, is_before
from rayhistory.sessions.keys import DASHBOARD_RESPONSES

log = logging.getLogger(__name__)
T = TypeVar("T")

_MIN_POLL_INTERVAL_S = 1.0
_MAX_VERIFY_DELAY_S = 5.0
_FINAL_TIMEOUT_S = 5.0
_MAX_CONCURRENT_FINAL_POLLS = 4

# Polls that start a driver inside Ray are made only when an actor shows that the library is in use.
_SERVE_ACTOR, _DATA_ACTOR, _TRAIN_ACTOR = "ServeController", "_StatsActor", "TrainStateActor"
_ENDED_STATUSES = {"SUCCEEDED", "FAILED", "STOPPED"}
_RUNNING, _ENDED, _DATASETS_STORED = "running", "ended", "datasets stored"


# Responses may have many megabytes, so only these fields are decoded.


class _Actor(msgspec.Struct, gc=False):
    actor_class: Any = msgspec.field(default=None, name="actorClass")
    class_name: Any = msgspec.field(default=None, name="className")


class _RayletInfo(msgspec.Struct, gc=False):
    node: Any = msgspec.field(default=None, name="nodeId")


class _NodeSummary(msgspec.Struct, gc=False):
    raylet: _RayletInfo | None = None


class _ResponseData(msgspec.Struct):
    actors: dict[str, _Actor] = {}
    summary: list[_NodeSummary] = []


class _Response(msgspec.Struct):
    data: _ResponseData = msgspec.field(default_factory=_ResponseData)


class _Job(msgspec.Struct, gc=False):
    job_id: Any = None
    status: Any = None


class DashboardPoller:
    """Polls the dashboard of one session.

    `put_endpoint` stores a response as KubeRay does: as an object named after the URI.
    """

    def __init__(
        self,
        *,
        session: str,
        dashboard: DashboardClient,
        schedule: PollSchedule,
        spool: Spool,
        put_endpoint: Callable[[str, bytes], Awaitable[None]],
        record: SessionRecord,
        telemetry: Telemetry,
        drivers: DriverWatch,
    ) -> None:
        self._session = session
        self._dashboard = dashboard
        self._schedule = schedule
        self._spool = spool
        self._put_endpoint = put_endpoint
        self._record = record
        self._telemetry = telemetry
        self._drivers = drivers
        self._silent_drivers: set[str] = set()
        self._spooled_digests: dict[str, bytes] = {}
        self._spans = NewSpans()
        self._endpoint_digests: dict[str, bytes] = {}
        self._actor_classes: set[str] = set()
        self._job_states: dict[str, str] = {}
        self._logged_failures: set[str] = set()
        self._final_slots = asyncio.Semaphore(_MAX_CONCURRENT_FINAL_POLLS)

    async def run(self) -> None:
        delays = backoff_delays(_MIN_POLL_INTERVAL_S, _MAX_VERIFY_DELAY_S)
        while True:
            self._check_drivers()
            if self._dashboard.verified:
                poll = self._schedule.next()
                await asyncio.sleep(max(0.0, poll.due - time.monotonic()))
                await self._poll(poll)
                await asyncio.sleep(_MIN_POLL_INTERVAL_S)
            elif await self._verify():
                delays = backoff_delays(_MIN_POLL_INTERVAL_S, _MAX_VERIFY_DELAY_S)
            else:
                await asyncio.sleep(_MIN_POLL_INTERVAL_S + next(delays))

    async def poll_final(self) -> None:
        """Before the dashboard ends, poll all URIs again whose responses may have changed, several at a time."""
        try:
            async with asyncio.timeout(_FINAL_TIMEOUT_S):
                if not self._dashboard.verified and not await self._verify():
                    return
                if self._drivers.silent(self._session, min_seconds=0):
                    self._schedule.add_failed_tasks()
                polls = self._schedule.final_polls()
                await asyncio.gather(*map(self._poll_final, polls))
                added = [poll for poll in self._schedule.final_polls() if poll not in polls]
                added += self._schedule.final_node_polls()
                await asyncio.gather(*map(self._poll_final, added))
        except TimeoutError:
            log.warning("final dashboard polls timed out, keeping older responses for some URLs")

    async def close(self) -> None:
        await self._dashboard.close()

    def _check_drivers(self) -> None:
        """Poll for failed tasks if a driver does not export events.

        Only the dashboard has the names and errors of the tasks of such a driver.
        """
        silent = self._drivers.silent(self._session, min_seconds=SILENT_AFTER_S)
        for job in silent.keys() - self._silent_drivers:
            self._silent_drivers.add(job)
            self._schedule.add_failed_tasks()
            if silent[job] in (None, self._spool.node_of(self._session)):
                log.warning(
                    "driver does not export events, polling the dashboard for its failed tasks; start the head with "
                    "the --system-config that `rayhistory env` prints",
                    extra={"session": self._session, "job": job},
                )

    async def _poll_final(self, poll: Poll) -> None:
        async with self._final_slots:
            await self._poll(poll, final=True)

    async def _poll(self, poll: Poll, *, final: bool = False) -> None:
        self._telemetry.dashboard_polls.inc()
        try:
            async with self._dashboard.open_response(poll.request) as body:
                self._update_schedule(poll.uri, body)
                stored = True
                if poll.uri == TASK_SPANS:
                    await self._store_spans(body)
                else:
                    stored = await self._store(poll, body, final=final)
                note = self._schedule.succeeded if stored else self._schedule.failed
                note(poll, time.monotonic(), len(body))
        except DashboardError as failure:
            self._report_failure(poll.uri, failure)
            self._schedule.failed(poll, time.monotonic(), failure.size)

    async def _verify(self) -> bool:
        """Check that the dashboard runs and belongs to this session."""
        self._telemetry.dashboard_polls.inc()
        try:
            ray_version, body = await self._dashboard.verify()
        except DashboardError as failure:
            self._report_failure(VERSION, failure)
            return False
        self._record.update(ray_version=ray_version, dashboard=self._dashboard.address)
        if is_before(ray_version, ALL_SPANS_SINCE):
            self._schedule.add_task_spans()
        await self._store(Poll(VERSION, 0.0), body, final=False)
        return True

    def _report_failure(self, uri: str, failure: DashboardError) -> None:
        reason = str(failure)
        self._telemetry.dashboard_poll_failures.labels(failure.code).inc()
        has_no_grafana = uri == GRAFANA and failure.code is DashboardFailure.STATUS
        key = f"{uri} {reason}" if has_no_grafana else reason
        if key not in self._logged_failures:
            self._logged_failures.add(key)
            log.log(
                logging.INFO if has_no_grafana else logging.WARNING,
                "dashboard poll failed, retrying (logged once per reason)",
                extra={"uri": uri, "address": self._dashboard.address, "reason": reason},
            )

    async def _store(self, poll: Poll, body: bytes, *, final: bool) -> bool:
        """Store a response if it has changed; return False if the object that KubeRay reads could not be written."""
        uri, digest = poll.uri, response_digest(body)
        if self._spooled_digests.get(uri) != digest and await self._append(uri, body):
            self._spooled_digests[uri] = digest
        if poll.kuberay and self._endpoint_digests.get(uri) != digest and not _is_empty(uri, body, final=final):
            try:
                await self._put_endpoint(uri, body)
            except StoreError as error:
                self._telemetry.upload_retries.labels("endpoints").inc()
                log.warning(
                    "cannot write KubeRay's copy of a dashboard response, "
                    + ("giving up at session end" if final else "polling again soon"),
                    extra={"uri": uri, "reason": str(error)},
                )
                return False
            self._endpoint_digests[uri] = digest
        return True

    async def _store_spans(self, body: bytes) -> None:
        """Store the spans that earlier lists did not have: a list has thousands of tasks, and few of them are new."""
        found = await asyncio.to_thread(self._spans.find, body)
        if found and await self._append(TASK_SPANS, found):
            self._spans.confirm()

    async def _append(self, uri: str, body: bytes) -> bool:
        """Append a response to the spool; return False if that failed."""
        line = dashboard_response_record(self._session, self._spool.node_of(self._session), uri, body)
        try:
            await self._spool.append({self._session: [Block(DASHBOARD_RESPONSES, 1, line)]})
        except SpoolError:
            self._telemetry.dashboard_responses_dropped.inc()
            self._telemetry.lost_count += 1
            return False
        self._telemetry.dashboard_responses_stored.inc()
        return True

    def _update_schedule(self, uri: str, body: bytes) -> None:
        """Add and remove polls according to the nodes, actors and jobs in a response."""
        if uri == NODES:
            response = _decode(body, _Response) or _Response()
            self._schedule.set_nodes([node for node in map(_node_id, response.data.summary) if node])
        elif uri == ACTORS:
            response = _decode(body, _Response) or _Response()
            for actor in response.data.actors.values():
                self._actor_classes |= {str(actor.actor_class), str(actor.class_name)}
        elif uri == JOBS:
            for job in _decode(body, list[_Job]) or ():
                if isinstance(job.job_id, str):
                    self._job_states.setdefault(job.job_id, _RUNNING)
                    if job.status in _ENDED_STATUSES and self._job_states[job.job_id] == _RUNNING:
                        self._job_states[job.job_id] = _ENDED
        elif uri.startswith(DATASETS) and self._job_states.get(uri.rpartition("/")[2]) == _ENDED:
            self._job_states[uri.rpartition("/")[2]] = _DATASETS_STORED  # the job had ended: no more changes
            self._schedule.remove(uri)
        self._add_library_polls()

    def _add_library_polls(self) -> None:
        if any(_SERVE_ACTOR in name for name in self._actor_classes):
            self._schedule.add(SERVE)
        if any(_TRAIN_ACTOR in name for name in self._actor_classes):
            self._schedule.add(TRAIN)
        if any(_DATA_ACTOR in name for name in self._actor_classes):
            for job, state in self._job_states.items():
                if state != _DATASETS_STORED:
                    self._schedule.add(DATASETS + job)


def library_uris(actors: Any, jobs: Any) -> list[str]:
    """List the URIs of Ray libraries in use, from one response about actors and one about jobs."""
    classes = _actor_classes(actors["data"]["actors"]) if actors else set()
    job_ids = [job["job_id"] for job in jobs or () if job.get("job_id")]
    uris = [SERVE] if any(_SERVE_ACTOR in name for name in classes) else []
    uris += [TRAIN] if any(_TRAIN_ACTOR in name for name in classes) else []
    return uris + ([DATASETS + job for job in job_ids] if any(_DATA_ACTOR in name for name in classes) else [])


def _actor_classes(actors: Any) -> set[str]:
    rows = [actor for actor in actors.values() if isinstance(actor, dict)] if isinstance(actors, dict) else []
    return {str(actor.get(name)) for actor in rows for name in ("actorClass", "className")}


def _is_empty(uri: str, body: bytes, *, final: bool) -> bool:
    """Return whether a response is empty, by KubeRay's rules. An empty response must not replace one in the store."""
    if uri.startswith(DATASETS):
        return not (_decode(body, dict[str, Any]) or {}).get("datasets")
    return uri == SERVE and final and not (_decode(body, dict[str, Any]) or {}).get("applications")


def _decode(body: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _node_id(summary: _NodeSummary) -> str | None:
    node = summary.raylet.node if summary.raylet else None
    return node if isinstance(node, str) and re.fullmatch(r"[0-9a-f]{56}", node) else None
