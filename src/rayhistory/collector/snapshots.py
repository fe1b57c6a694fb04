"""What events do not carry, from the dashboard of the head: kept on change, each answer with its time."""

import asyncio
import base64
import hashlib
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from rayhistory.collector import schedule
from rayhistory.collector.block import Block
from rayhistory.collector.dashboard import Dashboard, DashboardError
from rayhistory.collector.metrics import Metrics
from rayhistory.collector.record import SessionRecord
from rayhistory.collector.schedule import Question, Schedule
from rayhistory.collector.spool import Spool, SpoolError
from rayhistory.collector.supervise import delays
from rayhistory.errors import StoreError
from rayhistory.layout.keys import SNAPSHOTS

log = logging.getLogger(__name__)
T = TypeVar("T")

_BETWEEN_QUESTIONS = 1.0
_FINAL_PASS = 5.0
_SLOWEST_KNOCK = 5.0
_LAST_AT_ONCE = 4

# Questions that start a driver inside Ray are asked only when an actor shows that the library is in use.
_SERVE_ACTOR, _DATA_ACTOR, _TRAIN_ACTOR = "ServeController", "_StatsActor", "TrainStateActor"
_ENDED = {"SUCCEEDED", "FAILED", "STOPPED"}
_RUNNING, _OVER, _TOLD = "running", "over", "told"

# Ray's arrays of command lines end in thousands of "".
_EMPTY_TAIL = re.compile(rb'(?:,\s*""){8,}\s*\]')
# What differs in every answer and says nothing.
_VOLATILE = re.compile(rb'"now": ?[0-9.]+|Autoscaler status: [0-9: .-]+')


# Of answers that may be many megabytes, no more than this becomes objects.


class _Actor(msgspec.Struct, gc=False):
    actor_class: Any = msgspec.field(default=None, name="actorClass")
    class_name: Any = msgspec.field(default=None, name="className")


class _Raylet(msgspec.Struct, gc=False):
    node: Any = msgspec.field(default=None, name="nodeId")


class _Node(msgspec.Struct, gc=False):
    raylet: _Raylet | None = None


class _Data(msgspec.Struct):
    actors: dict[str, _Actor] = {}
    summary: list[_Node] = []


class _Answer(msgspec.Struct):
    data: _Data = msgspec.field(default_factory=_Data)


class _Job(msgspec.Struct, gc=False):
    job_id: Any = None
    status: Any = None


class Snapshots:
    """`put_endpoint` keeps an answer as KubeRay does, under the request's URI."""

    def __init__(
        self,
        *,
        session: str,
        dashboard: Dashboard,
        questions: Schedule,
        spool: Spool,
        put_endpoint: Callable[[str, bytes], Awaitable[None]],
        record: SessionRecord,
        metrics: Metrics,
    ) -> None:
        self._session = session
        self._dashboard = dashboard
        self._questions = questions
        self._spool = spool
        self._put_endpoint = put_endpoint
        self._record = record
        self._metrics = metrics
        self._kept: dict[str, bytes] = {}
        self._put: dict[str, bytes] = {}
        self._classes: set[str] = set()
        self._jobs: dict[str, str] = {}
        self._said: set[str] = set()
        self._last_few = asyncio.Semaphore(_LAST_AT_ONCE)

    async def run(self) -> None:
        pauses = delays(_BETWEEN_QUESTIONS, _SLOWEST_KNOCK)
        while True:
            if self._dashboard.verified:
                question = self._questions.next()
                await asyncio.sleep(max(0.0, question.due - time.monotonic()))
                await self._ask(question)
                await asyncio.sleep(_BETWEEN_QUESTIONS)
            elif await self._verify():
                pauses = delays(_BETWEEN_QUESTIONS, _SLOWEST_KNOCK)
            else:
                await asyncio.sleep(_BETWEEN_QUESTIONS + next(pauses))

    async def final(self) -> None:
        """Everything once more, a few at a time, as long as the dashboard is still there."""
        try:
            async with asyncio.timeout(_FINAL_PASS):
                if not self._dashboard.verified and not await self._verify():
                    return
                asked = self._questions.at_the_end()
                await asyncio.gather(*map(self._ask_last, asked))
                new = [question for question in self._questions.at_the_end() if question not in asked]
                new += self._questions.nodes_at_the_end()
                await asyncio.gather(*map(self._ask_last, new))
        except TimeoutError:
            log.warning("the dashboard did not answer all last questions in time")

    async def close(self) -> None:
        await self._dashboard.close()

    async def _ask_last(self, question: Question) -> None:
        async with self._last_few:
            await self._ask(question, last=True)

    async def _ask(self, question: Question, *, last: bool = False) -> None:
        self._metrics.snapshot_requests.inc()
        try:
            async with self._dashboard.answer(question.request) as body:
                self._learn(question.uri, body)
                await self._keep(question, body, last=last)
                self._questions.answered(question, time.monotonic(), len(body))
        except DashboardError as failure:
            self._failed(question.uri, str(failure))
            self._questions.failed(question, time.monotonic())

    async def _verify(self) -> bool:
        """Whether the dashboard is there, and is that of our session."""
        self._metrics.snapshot_requests.inc()
        try:
            ray_version, body = await self._dashboard.verify()
        except DashboardError as failure:
            self._failed(schedule.VERSION, str(failure))
            return False
        self._record.learn(ray_version=ray_version, dashboard=self._dashboard.address)
        await self._keep(Question(schedule.VERSION, 0.0), body, last=False)
        return True

    def _failed(self, uri: str, reason: str) -> None:
        self._metrics.snapshot_failures.labels(reason).inc()
        none_is_normal = uri == schedule.GRAFANA and reason.startswith("status")
        said = f"{uri} {reason}" if none_is_normal else reason
        if said not in self._said:
            self._said.add(said)
            log.log(
                logging.INFO if none_is_normal else logging.WARNING,
                "the dashboard did not answer; asked again, and not said again",
                extra={"uri": uri, "address": self._dashboard.address, "reason": reason},
            )

    async def _keep(self, question: Question, body: bytes, *, last: bool) -> None:
        uri, digest = question.uri, _digest(body)
        if self._kept.get(uri) != digest:
            line = snapshot_line(self._session, self._spool.node_of(self._session), uri, body)
            try:
                await self._spool.append({self._session: [Block(SNAPSHOTS, 1, line)]})
            except SpoolError:
                self._metrics.snapshots_dropped.inc()
                self._metrics.lost += 1
            else:
                self._kept[uri] = digest
                self._metrics.snapshots_kept.inc()
        if question.kuberay and self._put.get(uri) != digest and not _says_nothing(uri, body, last=last):
            try:
                await self._put_endpoint(uri, body)
            except StoreError as error:
                self._metrics.upload_retries.labels("endpoints").inc()
                log.warning("an answer could not be uploaded", extra={"uri": uri, "reason": str(error)})
            else:
                self._put[uri] = digest

    def _learn(self, uri: str, body: bytes) -> None:
        """What an answer tells about what else to ask."""
        if uri == schedule.NODES:
            answer = _read(body, _Answer) or _Answer()
            self._questions.set_nodes([node for node in map(_node_id, answer.data.summary) if node])
        elif uri == schedule.ACTORS:
            answer = _read(body, _Answer) or _Answer()
            for actor in answer.data.actors.values():
                self._classes |= {str(actor.actor_class), str(actor.class_name)}
        elif uri == schedule.JOBS:
            for job in _read(body, list[_Job]) or ():
                if isinstance(job.job_id, str):
                    self._jobs.setdefault(job.job_id, _RUNNING)
                    if job.status in _ENDED and self._jobs[job.job_id] == _RUNNING:
                        self._jobs[job.job_id] = _OVER
        elif uri.startswith(schedule.DATASETS) and self._jobs.get(uri.rpartition("/")[2]) == _OVER:
            self._jobs[uri.rpartition("/")[2]] = _TOLD  # the job had ended before: there is nothing more to learn
            self._questions.remove(uri)
        self._ask_about_libraries()

    def _ask_about_libraries(self) -> None:
        if any(_SERVE_ACTOR in name for name in self._classes):
            self._questions.add(schedule.SERVE)
        if any(_TRAIN_ACTOR in name for name in self._classes):
            self._questions.add(schedule.TRAIN)
        if any(_DATA_ACTOR in name for name in self._classes):
            for job, state in self._jobs.items():
                if state != _TOLD:
                    self._questions.add(schedule.DATASETS + job)


def library_questions(actors: Any, jobs: Any) -> list[str]:
    """What else to ask, by the answers about actors and jobs, of a cluster that is asked once."""
    classes = _classes(actors["data"]["actors"]) if actors else set()
    named = [job["job_id"] for job in jobs or () if job.get("job_id")]
    asked = [schedule.SERVE] if any(_SERVE_ACTOR in name for name in classes) else []
    asked += [schedule.TRAIN] if any(_TRAIN_ACTOR in name for name in classes) else []
    return asked + ([schedule.DATASETS + job for job in named] if any(_DATA_ACTOR in name for name in classes) else [])


def _classes(actors: Any) -> set[str]:
    found = [actor for actor in actors.values() if isinstance(actor, dict)] if isinstance(actors, dict) else []
    return {str(actor.get(name)) for actor in found for name in ("actorClass", "className")}


def snapshot_line(session: str, node: str | None, uri: str, body: bytes, *, only: bool = False) -> bytes:
    """An answer as it is kept; `only` when no events tell of the session."""
    now = time.time_ns()
    event = {
        "eventId": base64.b64encode(secrets.token_bytes(28)).decode(),
        "eventType": "DASHBOARD_SNAPSHOT",
        "sourceType": "RAYHISTORY",
        "timestamp": f"{datetime.fromtimestamp(now // 10**9, UTC):%Y-%m-%dT%H:%M:%S}.{now % 10**9:09d}Z",
        "severity": "INFO",
        "message": "",
        "sessionName": session,
        "nodeId": node or "",
        "dashboardSnapshot": {"uri": uri, "body": _as_json(body)} | ({"only": True} if only else {}),
    }
    return msgspec.json.Encoder().encode_lines([event])


def _as_json(body: bytes) -> Any:
    """The answer as it is, on one line; what is not JSON, as a string."""
    try:
        if not body.isascii():
            body.decode()
        body = _EMPTY_TAIL.sub(b"]", body)
        if b"\n" in body or b"\r" in body:
            body = msgspec.json.format(body, indent=-1)
        return msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body.decode(errors="replace")


def _digest(body: bytes) -> bytes:
    """Of what can have changed."""
    digest, view, start = hashlib.blake2b(), memoryview(body), 0
    for match in _VOLATILE.finditer(body):
        digest.update(view[start : match.start()])
        start = match.end()
    digest.update(view[start:])
    return digest.digest()


def _says_nothing(uri: str, body: bytes, *, last: bool) -> bool:
    """As in KubeRay: an empty answer does not replace a better one."""
    if uri.startswith(schedule.DATASETS):
        return not (_read(body, dict[str, Any]) or {}).get("datasets")
    return uri == schedule.SERVE and last and not (_read(body, dict[str, Any]) or {}).get("applications")


def _read(body: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _node_id(summary: _Node) -> str | None:
    node = summary.raylet.node if summary.raylet else None
    return node if isinstance(node, str) and re.fullmatch(r"[0-9a-f]{56}", node) else None
