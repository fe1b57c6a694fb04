"""Find the id of this Ray node.

Ray reports a node's id in several places, and none of them always exists. The order of attempts:

1. Files, checked every second: the newest port file (Ray 2.54 and later), then the last "Raylet of id" line in the
   raylet's logs, then the `raylet_node_id` file of older KubeRay setups. A restarted raylet has a new id, so files win
   over an id found earlier.
2. The id found earlier, unless it is a placeholder.
3. The node id in the session's events.
4. After 120 seconds, one request to the head's dashboard for the node with this pod's IP address, as KubeRay's
   collector does.
5. A placeholder node id. An id found later replaces it from then on.

A session known only from its events has no files: it skips attempts 1 and 4, and gets its placeholder after 5 seconds.
Orphaned sessions use 1 and 5. `rayhistory import-dir` uses 1, then `UNKNOWN_NODE_ID`.

Files come first because a thousand collectors must not ask the head for their ids.
"""

import asyncio
import hashlib
import logging
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from rayhistory import ids
from rayhistory.collector.held_directory import HeldDirectory
from rayhistory.collector.session.ray_files import READ_BYTES, newest_files, open_regular_file, read_start
from rayhistory.collector.supervise import wait_for_event
from rayhistory.settings import Settings

log = logging.getLogger(__name__)

UNKNOWN_NODE_ID = "unknown"

_PLACEHOLDER_AFTER_S = 120.0
_PLACEHOLDER_WITHOUT_FILES_AFTER_S = 5.0
_PORT_FILE = re.compile(r"[a-z_]+_port_([0-9a-f]{56})\Z")
_RAYLET_LOG = re.compile(r"raylet(\.\d+)?\.out\Z")
_RAYLET_LINE = re.compile(rb"Raylet of id, ([0-9a-f]{56}) started")
_MAX_RAYLET_LINE_BYTES = 128
_MAX_RAYLET_LOG_BYTES = 1 << 30
_MAX_RAYLET_LOGS = 64
_MAX_READ_LOGS = 256


class NodeIdFinder:
    """Finds the node ids of one collector's sessions, in the order that the module's docstring lists.

    `reported_node` returns the id in the events of a session.
    """

    def __init__(self, settings: Settings, reported_node: Callable[[str], str | None]) -> None:
        self.placeholder = placeholder_node_id(Path(settings.ray_tmp_root))
        self._settings = settings
        self._reported_node = reported_node

    def current(self, session: str, from_files: str | None, earlier: str | None) -> str | None:
        """Return the node id from files, else the id found earlier, else the id in events."""
        return from_files or (earlier if earlier != self.placeholder else None) or self._reported_node(session)

    def without_files(self, session: str) -> str:
        return self._reported_node(session) or self.placeholder

    async def for_unassigned(self, session: str, age_s: float) -> str | None:
        """Return the node id for spooled events of a session that is not being collected. None means to wait."""
        node = await asyncio.to_thread(self._find_in_files, session) or self._reported_node(session)
        return node or (self.placeholder if age_s > _PLACEHOLDER_AFTER_S else None)

    def _find_in_files(self, session: str) -> str | None:
        try:
            directory = HeldDirectory.open(Path(self._settings.ray_tmp_root), session)
        except OSError:
            return None
        return find_node_id(directory.path)

    async def fallback(self, session: str, found: asyncio.Event, has_directory: Callable[[], bool]) -> str | None:
        """Wait for `found`. After the timeout, return the id from the head's dashboard, or the placeholder.

        Return None if the id was found in time. Nothing is uploaded before the node has an id.
        """
        if await wait_for_event(found, _PLACEHOLDER_WITHOUT_FILES_AFTER_S):
            return None
        remaining_s = _PLACEHOLDER_AFTER_S - _PLACEHOLDER_WITHOUT_FILES_AFTER_S
        if has_directory() and await wait_for_event(found, remaining_s):
            return None
        node = await self._from_dashboard() if has_directory() else None
        if found.is_set():
            return None
        if node is None:
            log.warning("node id not found, using a placeholder", extra={"session": session, "node": self.placeholder})
        return node or self.placeholder

    async def _from_dashboard(self) -> str | None:
        if not self._settings.pod_ip or not self._settings.fq_ray_ip:
            return None
        return await find_node_id_by_ip(self._settings.pod_ip, self._settings)


def placeholder_node_id(ray_tmp_root: Path) -> str:
    """Return an id that is stable on this host, and different on other hosts."""
    identity = f"{socket.gethostname()} {ray_tmp_root.resolve()}"
    return f"unknown-{hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()}"


# Files


def find_node_id(directory: Path, ray_tmp_root: Path | None = None) -> str | None:
    """Find the node's id in the files of its session directory."""
    return (
        _from_port_files(directory)
        or _from_raylet_logs(directory)
        or (_from_hook_file(ray_tmp_root) if ray_tmp_root else None)
    )


def _from_port_files(directory: Path) -> str | None:
    """Return the id from the newest port file. A restarted raylet writes a new one."""
    newest = newest_files(directory, "", _PORT_FILE, 1)
    match = _PORT_FILE.match(newest[0]) if newest else None
    return match[1] if match else None


def _from_raylet_logs(directory: Path) -> str | None:
    """Return the id from the raylet's logs, newest first.

    A raylet logs its id once at start, and that log may be rotated.
    """
    logs = newest_files(directory, "logs", _RAYLET_LOG, _MAX_RAYLET_LOGS)
    found = (_last_raylet_id(directory, f"logs/{name}") for name in logs)
    return next(filter(None, found), None)


class _ReadLog(NamedTuple):
    """The read position of a raylet log, and the last id found before it."""

    beginning: bytes = b""
    """The first bytes of the log. They distinguish it from a later file with the same inode."""
    end: int = 0
    node: str | None = None


_read_logs: dict[tuple[str, int, int], _ReadLog] = {}
"""Read positions of raylet logs, by name, device and inode of the log."""


def _last_raylet_id(directory: Path, name: str) -> str | None:
    try:
        with open_regular_file(directory, name) as file:
            status = os.fstat(file.fileno())
            key = name, status.st_dev, status.st_ino
            beginning = os.pread(file.fileno(), _MAX_RAYLET_LINE_BYTES, 0)
            earlier = _read_logs.pop(key, _ReadLog())
            if earlier.end > status.st_size or not beginning.startswith(earlier.beginning):
                earlier = _ReadLog()
            _, end, node = earlier
            file.seek(max(0, end - _MAX_RAYLET_LINE_BYTES, status.st_size - _MAX_RAYLET_LOG_BYTES))
            rest = b""
            while chunk := file.read(min(READ_BYTES, max(0, status.st_size - file.tell()))):
                for match in _RAYLET_LINE.findall(rest + chunk):
                    node = match.decode()
                rest = chunk[-_MAX_RAYLET_LINE_BYTES:]
            _read_logs[key] = _ReadLog(beginning, file.tell(), node)
    except OSError:
        return None
    for oldest in list(_read_logs)[:-_MAX_READ_LOGS]:
        _read_logs.pop(oldest, None)
    return node


def _from_hook_file(ray_tmp_root: Path) -> str | None:
    """Return the id from the file that a hook of older KubeRay setups writes."""
    return ids.to_hex(read_start(ray_tmp_root, "raylet_node_id").decode(errors="replace").strip(), ids.NODE)


# The head's dashboard


class _NodeState(msgspec.Struct):
    node_id: str = ""
    node_ip: str = ""
    state: str = ""


class _NodeList(msgspec.Struct):
    result: list[_NodeState] = []


class _NodeListData(msgspec.Struct):
    result: _NodeList


class _NodeListResponse(msgspec.Struct):
    data: _NodeListData


async def find_node_id_by_ip(ip: str, settings: Settings) -> str | None:
    """Return the id of the live node with this IP address, from the dashboard whose address KubeRay's operator sets."""
    # Imported here, because an HTTP client costs memory that most nodes do not need.
    from rayhistory.collector.dashboard_client import (  # noqa: PLC0415
        DashboardClient,
        DashboardError,
        operator_dashboard_address,
    )

    dashboard = DashboardClient(settings, "", lambda: None)
    dashboard.address = operator_dashboard_address(settings) or dashboard.address
    uri = f"/api/v0/nodes?limit=10000&filter_keys=node_ip&filter_predicates=%3D&filter_values={quote(ip, safe='')}"
    try:
        response = msgspec.json.decode(await dashboard.get(uri), type=_NodeListResponse)
    except (DashboardError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning(
            "cannot get the node id from the head's dashboard, using a placeholder until Ray's files show it",
            extra={"reason": str(error)},
        )
        return None
    finally:
        await dashboard.close()
    alive = (node for node in response.data.result.result if node.node_ip == ip and node.state == "ALIVE")
    return next((ids.to_hex(node.node_id, ids.NODE) for node in alive), None)
