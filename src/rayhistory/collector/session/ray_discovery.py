"""Find the latest session in Ray's temporary directory: its directory, raylet, dashboard and metrics ports.

Only local files and sockets are used, because thousands of collectors must not query the head.
"""

import errno
import logging
import os
import re
import socket
import time
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from rayhistory.collector.held_directory import HeldDirectory
from rayhistory.collector.logs.walk import MAX_FILES, walk
from rayhistory.collector.session.node_id import find_node_id
from rayhistory.collector.session.ray_files import newest_files, read_start, scan_folder
from rayhistory.networks import parse_ip
from rayhistory.sessions.ref import is_session_name, session_start_time

log = logging.getLogger(__name__)

_DASHBOARD_LINE = re.compile(rb"Dashboard head http address: (?:https?://)?([0-9A-Za-z.\[\]:-]+:\d+)")
_AUTOSCALER_LINE = re.compile(rb"Starting autoscaler metrics server on port (\d{1,5})\n")
_LOG_ACTIVITY_S = 60.0  # a raylet writes its state every 10 s
_GCS_PORT_FILE = re.compile(r"gcs_server_port_[0-9a-f]{56}\Z")
_MAX_GCS_PORT_FILES = 8  # a head has one for each start of its GCS; each may cost a timeout
_PROBE_TIMEOUT_S = 1.0
_MAX_EXAMINED_FILES = 10_000
_MAX_LEAD_S = 26 * 3600.0  # a time zone, and half a day


class RayletState(Enum):
    ALIVE = "alive"
    GONE = "gone"
    ACTIVE = "active"
    """The raylet's socket cannot be probed, but its logs grow."""


class LatestSession(NamedTuple):
    session: str
    directory: HeldDirectory
    node: str | None
    """The node id, if files contain it."""


def find_latest_session(ray_tmp_root: Path) -> LatestSession | None:
    """Return the session that `session_latest` links to. It may have ended."""
    try:
        name = ray_tmp_root.joinpath("session_latest").readlink().name  # Ray may have another path to the directory
    except OSError:
        if not ray_tmp_root.exists():
            _log_missing_root(str(ray_tmp_root))
        return None
    directory = _open_session(ray_tmp_root, name)
    return LatestSession(name, directory, find_node_id(directory.path, ray_tmp_root)) if directory else None


@lru_cache(maxsize=1)
def _log_missing_root(ray_tmp_root: str) -> None:
    """Log once that Ray's temporary directory is missing."""
    log.warning(
        "Ray's temporary directory does not exist, waiting for it (--ray-tmp-root)",
        extra={"ray_tmp_root": ray_tmp_root},
    )


def find_running_session(ray_tmp_root: Path, names: Iterable[str]) -> LatestSession | None:
    """Return the first of these sessions whose raylet is alive."""
    for name in names:
        directory = _open_session(ray_tmp_root, name)
        if directory and raylet_state(directory.path) is RayletState.ALIVE:
            return LatestSession(name, directory, find_node_id(directory.path, ray_tmp_root))
    return None


def session_state(ray_tmp_root: Path, name: str) -> RayletState:
    directory = _open_session(ray_tmp_root, name)
    return raylet_state(directory.path) if directory else RayletState.GONE


def may_run_here(ray_tmp_root: Path, name: str) -> bool:
    """Return whether a session runs on this node, or may run in a container whose files are not visible."""
    if has_directory(ray_tmp_root, name):
        return session_state(ray_tmp_root, name) is not RayletState.GONE
    return not _starts_after(name, time.time())


def has_directory(ray_tmp_root: Path, name: str) -> bool:
    return os.path.lexists(ray_tmp_root / name)


def _open_session(ray_tmp_root: Path, name: str) -> HeldDirectory | None:
    """Open a session's directory. Return None if there is none, or if a job made it."""
    if not is_session_name(name):
        return None
    try:
        directory = HeldDirectory.open(ray_tmp_root, name)
    except OSError:
        return None
    return None if is_in_the_future(name, directory) else directory


def is_in_the_future(session: str, directory: HeldDirectory) -> bool:
    """Return whether the time in a session's name is later than the last change of its directory.

    Only a job can have made such a directory.
    """
    return _starts_after(session, directory.changed_ns / 1e9)


def _starts_after(session: str, now_s: float) -> bool:
    """Return whether the time in a session's name is after `now_s`, or impossible.

    The time has no time zone, and clocks of nodes differ, so some tolerance applies.
    """
    started = session_start_time(session)
    return started is None or started.timestamp() > now_s + _MAX_LEAD_S


def session_start_ms(directory: Path, now_ms: int) -> int:
    """Return the time of the oldest file in a session directory, because the time in its name has no time zone."""
    files = islice(scan_folder(directory), _MAX_EXAMINED_FILES)
    return min(chain([now_ms], (status.st_mtime_ns // 10**6 for _, status in files)))


# Raylet


def raylet_state(directory: Path) -> RayletState:
    """Check whether the raylet is alive, without connecting to its socket, because the raylet logs each connection.

    A datagram socket cannot connect to a stream socket, but the error tells whether a process listens. If the check is
    not permitted (Ray runs as another user), the raylet counts as active while any log of the session grows.
    """
    path = directory / "sockets" / "raylet"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            path.stat()  # a missing socket can also have a path that is too long
            probe.connect(str(path))
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return RayletState.GONE
        except OSError as error:
            if error.errno == errno.EPROTOTYPE:
                return RayletState.ALIVE
            _log_probe_failure(str(directory.resolve()), error.strerror or str(error))
            return RayletState.ACTIVE if _has_recent_writes(directory / "logs") else RayletState.GONE
    return RayletState.GONE  # a datagram socket is no raylet


def gcs_answers(directory: Path) -> bool:
    """Return whether the GCS of this session listens on this node, which it does on the head (Ray 2.54 and later)."""
    for name in newest_files(directory, "", _GCS_PORT_FILE, _MAX_GCS_PORT_FILES):
        if port := _parse_port(read_start(directory, name).decode(errors="replace")):
            try:
                socket.create_connection(("127.0.0.1", port), _PROBE_TIMEOUT_S).close()
            except OSError:
                continue
            return True
    return False


def last_log_write_ms(directory: Path, now_ms: int) -> int | None:
    """Return the time of the last write to the session's logs, by this node's clock and not after `now_ms`."""
    result = walk(str(directory / "logs"), MAX_FILES)
    times = [entry.modified_ns // 10**6 for entry in result.entries] if result else []
    return max((time_ms for time_ms in times if time_ms <= now_ms), default=None)


@lru_cache(maxsize=64)
def _log_probe_failure(directory: str, reason: str) -> None:
    """Log the failure to probe a raylet, once per reason."""
    log.warning(
        "cannot connect to the raylet socket, using recent writes to the session's logs to detect whether Ray runs",
        extra={"directory": directory, "reason": reason},
    )


def _has_recent_writes(logs: Path) -> bool:
    result = walk(str(logs), MAX_FILES)
    newest = max((entry.modified_ns for entry in result.entries), default=0) if result else 0
    return time.time_ns() - newest <= _LOG_ACTIVITY_S * 10**9


# Addresses


def find_dashboard_address(directory: Path) -> str | None:
    """Return the address that the session's dashboard has logged, if it is an address of this machine.

    Any job can write to that log, and the cluster's token is sent to the address.
    """
    logged = [match.decode() for match in _DASHBOARD_LINE.findall(read_start(directory, "logs/dashboard.log"))]
    return next((f"http://{address}" for address in reversed(logged) if _is_local(address.rpartition(":")[0])), None)


def _is_local(host: str) -> bool:
    """Return whether an address is loopback or belongs to this pod. Only local processes can listen on it."""
    ip = parse_ip(host.strip("[]"))
    if ip is None or ip.is_unspecified or ip.is_multicast:
        return False
    if ip.is_loopback:
        return True
    try:
        with socket.socket(socket.AF_INET6 if ip.version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((str(ip), 0))
    except OSError:
        return False
    return True


def metrics_port(directory: Path, node: str) -> int | None:
    """Return the port of the node's metrics; None if Ray's files do not name it (yet)."""
    text = read_start(directory, f"metrics_export_port_{node}").decode(errors="replace").strip()
    return _parse_port(text or _port_before_ray_2_54(read_start(directory, "ports_by_node.json")))


def _port_before_ray_2_54(ports_by_node: bytes) -> object:
    """Return the metrics port of the first node in `ports_by_node.json`.

    The file lists all nodes of a host. A pod has only one.
    """
    try:
        nodes = msgspec.json.decode(ports_by_node, type=dict[str, dict[str, object]])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return next((ports["metrics_export_port"] for ports in nodes.values() if "metrics_export_port" in ports), None)


def autoscaler_port(directory: Path) -> int | None:
    """Return the port of the head's autoscaler metrics from its log."""
    ports = _AUTOSCALER_LINE.findall(read_start(directory, "logs/monitor.log"))
    return _parse_port(ports[-1].decode()) if ports else None


def _parse_port(value: object) -> int | None:
    text = str(value)
    return int(text) if re.fullmatch(r"\d{1,5}", text) and 0 < int(text) < 65536 else None
