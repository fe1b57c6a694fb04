"""Discover the latest session in Ray's temporary directory: its directory, raylet, dashboard and metrics ports.

Only local files and sockets are used: a thousand collectors must not query the head.
"""

import logging
import re
import socket
import time
from enum import Enum
from functools import lru_cache
from pathlib import Path

import msgspec

from rayhistory.collector.logs.walk import MAX_FILES, walk
from rayhistory.collector.session.node_id import find_node_id
from rayhistory.collector.session.ray_files import read_start
from rayhistory.networks import parse_ip
from rayhistory.sessions.ref import is_session_name

log = logging.getLogger(__name__)

_DASHBOARD_LINE = re.compile(rb"Dashboard head http address: (?:https?://)?([0-9A-Za-z.\[\]:-]+:\d+)")
_AUTOSCALER_LINE = re.compile(rb"Starting autoscaler metrics server on port (\d{1,5})\n")
_LOG_ACTIVITY_S = 60.0  # a raylet writes its state every 10 s


class RayletState(Enum):
    ALIVE = "alive"
    GONE = "gone"


class LatestSession(msgspec.Struct, frozen=True):
    session: str
    directory: Path
    node: str | None
    """Node id, if the files tell it."""


def find_latest_session(ray_tmp_root: Path) -> LatestSession | None:
    """Return the session that `session_latest` links to. It may have ended."""
    try:
        directory = ray_tmp_root.joinpath("session_latest").resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    if not is_session_name(directory.name) or not directory.is_dir():
        return None
    return LatestSession(directory.name, directory, find_node_id(directory, ray_tmp_root))


def session_start_ms(directory: Path, now_ms: int) -> int:
    """Return the time of the oldest file in a session directory: the session's name has no time zone."""
    try:
        times = [int(path.lstat().st_mtime * 1000) for path in directory.iterdir()]
    except OSError:
        times = []
    return min([now_ms, *times])


# Raylet


def raylet_state(directory: Path) -> RayletState:
    """Probe the raylet's socket. Called only at the start and end of a session.

    If the socket cannot be probed (Ray runs as another user, or the path is too long for a socket), the raylet counts
    as alive while its logs grow.
    """
    path = directory / "sockets" / "raylet"
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            path.stat()  # a missing socket can also have a path that is too long
            probe.connect(str(path))
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return RayletState.GONE
        except OSError as error:
            _log_probe_failure(directory, str(error))
            return RayletState.ALIVE if _has_recent_writes(directory / "logs") else RayletState.GONE
    return RayletState.ALIVE


@lru_cache(maxsize=64)
def _log_probe_failure(directory: Path, reason: str) -> None:
    """Log each failure once."""
    log.warning(
        "cannot probe raylet socket, watching its logs instead",
        extra={"directory": str(directory), "reason": reason},
    )


def _has_recent_writes(logs: Path) -> bool:
    result = walk(str(logs), MAX_FILES)
    newest = max((entry.modified_ns for entry in result.entries), default=0) if result else 0
    return time.time_ns() - newest <= _LOG_ACTIVITY_S * 10**9


# Addresses


def find_dashboard_address(directory: Path) -> str | None:
    """Return the address that the session's dashboard has logged, if it is one of this machine.

    Any job can write to that log, and the cluster's token is sent to the address.
    """
    logged = [match.decode() for match in _DASHBOARD_LINE.findall(read_start(directory / "logs" / "dashboard.log"))]
    return next((f"http://{address}" for address in reversed(logged) if _is_local(address.rpartition(":")[0])), None)


def _is_local(host: str) -> bool:
    """Return True for loopback and for the addresses of this pod's interfaces, which only they can be bound to."""
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
    """Return the port of the node's metrics; None if it has none, or not yet."""
    text = read_start(directory / f"metrics_export_port_{node}").decode(errors="replace").strip()
    return _parse_port(text or _port_before_ray_2_54(read_start(directory / "ports_by_node.json")))


def _port_before_ray_2_54(ports_by_node: bytes) -> object:
    """Use the first node in the file: all nodes of a host share it, and a pod has one."""
    try:
        nodes = msgspec.json.decode(ports_by_node, type=dict[str, dict[str, object]])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return next((ports["metrics_export_port"] for ports in nodes.values() if "metrics_export_port" in ports), None)


def autoscaler_port(directory: Path) -> int | None:
    """Return the port of the head's autoscaler metrics from its log."""
    ports = _AUTOSCALER_LINE.findall(read_start(directory / "logs" / "monitor.log"))
    return _parse_port(ports[-1].decode()) if ports else None


def _parse_port(value: object) -> int | None:
    text = str(value)
    return int(text) if re.fullmatch(r"\d{1,5}", text) and 0 < int(text) < 65536 else None
