"""Upload logs of orphaned sessions: sessions that ended before the collector started, and KubeRay's `prev-logs`.

    <ray-tmp-root>/session_…/logs                        node id from port files or the raylet's log
    <ray-tmp-root>/prev-logs/<session>/<node>/logs       node id from the directory's name

The upload continues where an earlier collector stopped. Uploaded logs are marked in the spool's directory, and are
uploaded again only if they change. Sessions that another cluster recorded are not uploaded. Logs below `prev-logs` may
have any session name. They are moved to `persist-complete-logs` afterwards, as KubeRay does.
"""

import asyncio
import heapq
import logging
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path

import msgspec

from rayhistory.collector.held_directory import HeldDirectory
from rayhistory.collector.logs.event_streams import EventStreams
from rayhistory.collector.logs.series_starts import SeriesStarts
from rayhistory.collector.logs.shipper import make_shipper
from rayhistory.collector.logs.walk import MAX_FILES, walk
from rayhistory.collector.session.complete_logs import PREV_LOGS, move_to_complete_logs
from rayhistory.collector.session.node_id import find_node_id, placeholder_node_id
from rayhistory.collector.session.other_clusters import OtherRecording, find_in_spools, find_in_store
from rayhistory.collector.session.ray_discovery import RayletState, is_in_the_future, raylet_state
from rayhistory.collector.session.ray_files import scan_folder
from rayhistory.collector.session.session_record import put_with_retries
from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.collector.telemetry import Telemetry
from rayhistory.errors import StoreError
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.ref import is_safe_component, is_session_name
from rayhistory.settings import Settings
from rayhistory.storage import Store

log = logging.getLogger(__name__)

_MARKS_FOLDER = "leftovers"
_MAX_MARK_BYTES = 4096
_MAX_FOLDERS = 10_000
_INTERVAL_S = 60.0
_QUIET_S = 60.0  # a starting session has no raylet yet, but recent files; a raylet writes its state every 10 s


class OrphanedSession(msgspec.Struct, frozen=True):
    session: str
    node: str
    place: str
    """The directory that contains `logs`, below Ray's temporary directory."""

    @property
    def is_prev_logs(self) -> bool:
        return self.place.startswith(f"{PREV_LOGS}/")


class OrphanedSessionShipper:
    """Uploads the logs of orphaned sessions.

    `active_sessions` returns the sessions that have a collector, with their node ids.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        layout: Layout,
        telemetry: Telemetry,
        *,
        spool: PrivateDirectory,
        starts: SeriesStarts,
        ref_of: Callable[[str], SessionRef],
        active_sessions: Callable[[], Mapping[str, str | None]],
        events_of: Callable[[str], EventStreams] | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._layout = layout
        self._telemetry = telemetry
        self._root = Path(settings.ray_tmp_root)
        self._spool = spool
        self._starts = starts
        self._ref_of = ref_of
        self._active_sessions = active_sessions
        self._events_of = events_of
        self._shipping: tuple[str, asyncio.Task[None]] | None = None
        self._of_others: set[str] = set()
        """Sessions that another cluster recorded."""

    async def run(self) -> None:
        while True:
            await self.ship_all()
            await asyncio.sleep(_INTERVAL_S)

    async def ship_all(self) -> None:
        orphans = await asyncio.to_thread(lambda: list(self._find()))
        skipped = await self._skipped_sessions(orphans)
        for orphan in orphans:
            if self._is_active(orphan) or (orphan.session in skipped and not orphan.is_prev_logs):
                continue
            task = asyncio.create_task(self._ship(orphan))
            self._shipping = orphan.session, task
            try:
                await asyncio.wait({task})
                if not task.cancelled() and (failure := task.exception()):
                    raise failure
            finally:
                self._shipping = None
                task.cancel()

    def release(self, session: str) -> None:
        """Stop uploading a session that turns out to be alive, because a session collector takes over."""
        if self._shipping and self._shipping[0] == session:
            self._shipping[1].cancel()

    async def _skipped_sessions(self, orphans: list[OrphanedSession]) -> set[str]:
        """Return the sessions that another cluster recorded. KubeRay's `prev-logs` belong to this cluster.

        If the store cannot tell, all sessions are skipped until the next check.
        """
        unknown = {
            each.session: each for each in orphans if not each.is_prev_logs and each.session not in self._of_others
        }
        recordings = await asyncio.to_thread(lambda: dict(filter(None, map(self._find_in_spools, unknown.values()))))
        remaining = unknown.keys() - recordings.keys()
        try:
            if remaining:
                ref = self._ref_of(min(remaining))
                recordings |= await find_in_store(self._store, self._layout, ref.namespace, ref.cluster, remaining)
        except StoreError as error:
            log.warning(
                "cannot check whether another cluster recorded sessions, retrying",
                extra={"sessions": len(remaining), "reason": str(error)},
            )
            return self._of_others | unknown.keys()
        for session, recording in recordings.items():
            self._of_others.add(session)
            _log_skipped(unknown[session], recording)
        return self._of_others

    def _find_in_spools(self, orphan: OrphanedSession) -> tuple[str, OtherRecording] | None:
        mark, version = f"{_MARKS_FOLDER}/{_mark_name(orphan)}", _version(self._root / orphan.place / "logs")
        found = find_in_spools(self._spool.path, orphan.session, mark, version)
        return (orphan.session, found) if found else None

    async def _ship(self, orphan: OrphanedSession) -> None:
        ref, node = self._ref_of(orphan.session), orphan.node
        log.info("found a session without a collector, uploading its logs", extra=_log_fields(orphan))
        try:
            directory = HeldDirectory.open(self._root, *orphan.place.split("/"))
        except OSError:
            return  # removed since
        logs = directory.path / "logs"
        version = await asyncio.to_thread(_version, logs)
        shipper = make_shipper(
            logs,
            self._settings,
            self._store,
            self._telemetry,
            starts=self._starts,
            packs_prefix=lambda: self._layout.node_packs_prefix(ref, node),
            key_of=lambda name: self._layout.log_key(ref, node, name),
            events=self._events_of(orphan.session) if self._events_of and is_session_name(orphan.session) else None,
        )
        if self._settings.role == "Head" and is_session_name(orphan.session):
            metadata_key = self._layout.metadata_key(ref)
            await put_with_retries(lambda: self._store.put(metadata_key, b""), self._telemetry, "record")
        await shipper.finish()
        await asyncio.to_thread(_write_mark, self._spool, orphan, version)
        if orphan.is_prev_logs:
            await asyncio.to_thread(move_to_complete_logs, self._root, orphan.session, orphan.node)
        log.info("uploaded the logs of a session without a collector", extra=_log_fields(orphan))

    def _find(self) -> Iterator[OrphanedSession]:
        for orphan, directory in chain(self._ended_sessions(), self._prev_logs()):
            logs = directory.path / "logs"
            if not self._is_active(orphan) and _is_quiet(logs) and _read_mark(self._spool, orphan) != _version(logs):
                yield orphan

    def _is_active(self, orphan: OrphanedSession) -> bool:
        active = self._active_sessions()
        if orphan.session not in active:
            return False
        return orphan.place == orphan.session or active[orphan.session] == orphan.node

    def _ended_sessions(self) -> Iterator[tuple[OrphanedSession, HeldDirectory]]:
        for directory in _folders(self._root):
            name = directory.name
            is_past_session = is_session_name(name) and not is_in_the_future(name, directory)
            if is_past_session and raylet_state(directory.path) is RayletState.GONE:
                yield _orphan_in(directory), directory

    def _prev_logs(self) -> Iterator[tuple[OrphanedSession, HeldDirectory]]:
        for session in _folders(self._root, PREV_LOGS):
            for node in _folders(self._root, PREV_LOGS, session.name) if is_safe_component(session.name) else ():
                is_forged = is_session_name(session.name) and is_in_the_future(session.name, node)
                if is_safe_component(node.name) and not is_forged:
                    place = f"{PREV_LOGS}/{session.name}/{node.name}"
                    yield OrphanedSession(session.name, node.name, place), node


def _orphan_in(directory: HeldDirectory) -> OrphanedSession:
    node = find_node_id(directory.path) or placeholder_node_id(directory.place.parent)
    return OrphanedSession(directory.name, node, directory.name)


def _log_skipped(orphan: OrphanedSession, recording: OtherRecording) -> None:
    extra = {**_log_fields(orphan), "cluster": recording.cluster}
    if recording.is_complete:
        log.info("found a session that another cluster has uploaded, skipping it", extra=extra)
    else:
        log.warning(
            "found a session that another cluster has not completely uploaded, skipping it; to upload the rest, "
            "start a collector with the name of that cluster",
            extra=extra,
        )


def mark_shipped(spool: PrivateDirectory, directory: HeldDirectory, node: str) -> None:
    """Mark a session's logs as uploaded, under this node id and the id in its files."""
    for orphan in {OrphanedSession(directory.name, node, directory.name), _orphan_in(directory)}:
        _write_mark(spool, orphan, _version(directory.path / "logs"))


def has_unshipped_logs(spool: PrivateDirectory, directory: HeldDirectory) -> bool:
    """Check whether some logs of a session that has just ended are not stored yet."""
    logs = directory.path / "logs"
    return not _is_quiet(logs) and _read_mark(spool, _orphan_in(directory)) != _version(logs)


def _write_mark(spool: PrivateDirectory, orphan: OrphanedSession, version: str) -> None:
    marks = spool.folder(_MARKS_FOLDER)
    try:
        marks.make()
        marks.write(_mark_name(orphan), version.encode())
    except OSError as error:
        log.warning(
            "cannot mark the logs of a session as uploaded, checking them again later",
            extra={**_log_fields(orphan), "reason": str(error)},
        )


def _read_mark(spool: PrivateDirectory, orphan: OrphanedSession) -> str | None:
    try:
        return spool.folder(_MARKS_FOLDER).read(_mark_name(orphan), _MAX_MARK_BYTES).decode(errors="replace")
    except OSError:
        return None


def _mark_name(orphan: OrphanedSession) -> str:
    return f"{orphan.session}@{orphan.node}"


def _version(logs: Path) -> str:
    """Return a text that changes when any of the files changes."""
    result = walk(str(logs), MAX_FILES)
    entries = result.entries if result else []
    newest = max((entry.modified_ns for entry in entries), default=0)
    excess = result.excess if result else 0
    return f"{len(entries) + excess} files, {sum(entry.size for entry in entries)} bytes, {newest}"


def _is_quiet(logs: Path) -> bool:
    result = walk(str(logs), MAX_FILES)
    if not result or not result.entries:
        return False
    return time.time_ns() - max(entry.modified_ns for entry in result.entries) > _QUIET_S * 10**9


def _folders(root: Path, *names: str) -> Iterator[HeldDirectory]:
    """Open the subdirectories one after another, ordered by name. If there are too many, skip the oldest sessions."""
    entries = scan_folder(root, "/".join(names))
    folders = heapq.nlargest(_MAX_FOLDERS, (name for name, status in entries if stat.S_ISDIR(status.st_mode)))
    for name in reversed(folders):
        with suppress(OSError):
            yield HeldDirectory.open(root, *names, name)


def _log_fields(orphan: OrphanedSession) -> dict[str, str]:
    return {"session": orphan.session, "node": orphan.node, "directory": orphan.place}
