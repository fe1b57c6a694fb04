"""Logs of sessions that nobody keeps: those that ended before the collector started, and KubeRay's `prev-logs`.

    <ray-tmp-root>/session_…/logs                        the node is named by port files or the raylet's log
    <ray-tmp-root>/prev-logs/<session>/<node>/logs       the node is the folder

They are shipped like those of a running session, go on where an earlier collector was, and are marked in the spool's
directory when they are in the store, so that they are not looked at again unless they change.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from rayhistory.collector.discovery import Raylet, find_node, nameless, raylet
from rayhistory.collector.eventstreams import EventStreams
from rayhistory.collector.logs import make_shipper
from rayhistory.collector.metrics import Metrics
from rayhistory.collector.record import insist
from rayhistory.collector.walk import MOST_FILES, walk
from rayhistory.layout import Layout, SessionRef
from rayhistory.layout.session import is_safe_component, is_session_name
from rayhistory.settings import Settings
from rayhistory.storage import Store

log = logging.getLogger(__name__)

PREV_LOGS = "prev-logs"
_MARKS = "leftovers"
_EVERY = 60.0
_QUIET = 60.0  # a session about to start has no raylet yet, but young files; a raylet writes its state every 10 s
_UNKNOWN = "unknown"


class Leftover(msgspec.Struct, frozen=True):
    session: str
    node: str
    logs: Path


class Leftovers:
    """`kept` says which sessions are being kept, and as which node: they are left alone."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        layout: Layout,
        metrics: Metrics,
        *,
        spool: Path,
        ref_of: Callable[[str], SessionRef],
        kept: Callable[[], Mapping[str, str | None]],
        events_of: Callable[[str], EventStreams] | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._layout = layout
        self._metrics = metrics
        self._root = Path(settings.ray_tmp_root)
        self._spool = spool
        self._ref_of = ref_of
        self._kept = kept
        self._events_of = events_of
        self._shipping: tuple[str, asyncio.Task[None]] | None = None

    async def run(self) -> None:
        while True:
            await self.ship_all()
            await asyncio.sleep(_EVERY)

    async def ship_all(self) -> None:
        for leftover in await asyncio.to_thread(lambda: list(self._find())):
            if self._is_kept(leftover):
                continue
            task = asyncio.create_task(self._ship(leftover))
            self._shipping = leftover.session, task
            try:
                await asyncio.wait({task})
                if not task.cancelled() and (failure := task.exception()):
                    raise failure
            finally:
                self._shipping = None
                task.cancel()

    def release(self, session: str) -> None:
        """The session turns out to be alive: somebody else keeps it from here."""
        if self._shipping and self._shipping[0] == session:
            self._shipping[1].cancel()

    async def _ship(self, leftover: Leftover) -> None:
        ref, node = self._ref_of(leftover.session), leftover.node
        log.info("logs of a session that is over are picked up", extra=_told(leftover))
        version = await asyncio.to_thread(_version, leftover.logs)
        shipper = make_shipper(
            leftover.logs,
            self._settings,
            self._store,
            self._metrics,
            packs_at=lambda: self._layout.node_packs_prefix(ref, node),
            key_of=lambda name: self._layout.log_key(ref, node, name),
            events=self._events_of(leftover.session) if self._events_of else None,
        )
        if self._settings.role == "Head":
            await insist(lambda: self._store.put(self._layout.metadata_key(ref), b""), self._metrics, "record")
        await shipper.finish()
        await asyncio.to_thread(_mark, self._spool, leftover, version)
        log.info("logs of a session that is over are in the store", extra=_told(leftover))

    def _find(self) -> Iterator[Leftover]:
        for leftover in (*self._ended(), *self._moved_away()):
            if self._is_kept(leftover) or not _is_quiet(leftover.logs):
                continue
            if _marked(self._spool, leftover) != _version(leftover.logs):
                yield leftover

    def _is_kept(self, leftover: Leftover) -> bool:
        kept = self._kept()
        if leftover.session not in kept:
            return False
        return leftover.logs.parent.parent == self._root or kept[leftover.session] == leftover.node

    def _ended(self) -> Iterator[Leftover]:
        for directory in _folders(self._root):
            if is_session_name(directory.name) and raylet(directory) is not Raylet.ALIVE:
                yield _left_in(directory)

    def _moved_away(self) -> Iterator[Leftover]:
        for session in _folders(self._root / PREV_LOGS):
            for node in _folders(session) if is_session_name(session.name) else ():
                if is_safe_component(node.name):
                    yield Leftover(session.name, node.name, node / "logs")


def node_of(directory: Path) -> str:
    """The node whose session directory this is, as far as its files tell."""
    return find_node(directory) or _UNKNOWN


def _left_in(directory: Path) -> Leftover:
    return Leftover(directory.name, find_node(directory) or nameless(directory.parent), directory / "logs")


def mark_done(spool: Path, session: str, node: str, logs: Path) -> None:
    """For a session that was kept to its end: there is nothing to pick up, whichever node its files tell of."""
    for leftover in {Leftover(session, node, logs), _left_in(logs.parent)}:
        _mark(spool, leftover, _version(logs))


def is_unfinished(spool: Path, directory: Path) -> bool:
    """Of a session that has just ended: whether some of its logs are not in the store."""
    leftover = _left_in(directory)
    return not _is_quiet(leftover.logs) and _marked(spool, leftover) != _version(leftover.logs)


def _mark(spool: Path, leftover: Leftover, version: str) -> None:
    path = _mark_path(spool, leftover)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(version)
    except OSError as error:
        log.warning("shipped logs could not be marked", extra={**_told(leftover), "reason": str(error)})


def _marked(spool: Path, leftover: Leftover) -> str | None:
    try:
        return _mark_path(spool, leftover).read_text()
    except OSError:
        return None


def _mark_path(spool: Path, leftover: Leftover) -> Path:
    return spool / _MARKS / f"{leftover.session}@{leftover.node}"


def _version(logs: Path) -> str:
    """Changes when any of the files does."""
    walked = walk(str(logs), MOST_FILES)
    entries = walked.entries if walked else []
    newest = max((entry.modified_ns for entry in entries), default=0)
    beyond = walked.beyond if walked else 0
    return f"{len(entries) + beyond} files, {sum(entry.size for entry in entries)} bytes, {newest}"


def _is_quiet(logs: Path) -> bool:
    walked = walk(str(logs), MOST_FILES)
    if not walked or not walked.entries:
        return False
    return time.time_ns() - max(entry.modified_ns for entry in walked.entries) > _QUIET * 10**9


def _folders(directory: Path) -> list[Path]:
    try:
        with os.scandir(directory) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _told(leftover: Leftover) -> dict[str, str]:
    return {"session": leftover.session, "node": leftover.node, "directory": str(leftover.logs)}
