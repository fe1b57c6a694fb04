"""What is going on in Ray's temporary directory: which session, which node, is its raylet there.

Only local files are looked at: a thousand collectors must not ask the head who they are.
"""

import re
import socket
from enum import Enum
from pathlib import Path

import msgspec

from rayhistory import ids
from rayhistory.layout.session import is_session_name

_PORT_FILE = re.compile(r"[a-z_]+_port_([0-9a-f]{56})\Z")
_RAYLET_LINE = re.compile(rb"Raylet of id, ([0-9a-f]{56}) started")
_DASHBOARD_LINE = re.compile(rb"Dashboard head http address: (?:https?://)?([0-9A-Za-z.\[\]:-]+:\d+)")
_AUTOSCALER_LINE = re.compile(rb"Starting autoscaler metrics server on port (\d{1,5})\n")
_LOG_START = 1 << 20


class Raylet(Enum):
    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


class Sighting(msgspec.Struct, frozen=True):
    session: str
    directory: Path
    node: str | None


def look(ray_tmp_root: Path) -> Sighting | None:
    """The session that `session_latest` leads to, which may be one that is over."""
    try:
        directory = ray_tmp_root.joinpath("session_latest").resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    if not is_session_name(directory.name) or not directory.is_dir():
        return None
    return Sighting(directory.name, directory, find_node(directory, ray_tmp_root))


def find_node(directory: Path, ray_tmp_root: Path | None = None) -> str | None:
    """The id of the node whose session directory this is."""
    return (
        _from_port_files(directory)
        or _from_raylet_log(directory / "logs" / "raylet.out")
        or (_from_hook_file(ray_tmp_root / "raylet_node_id") if ray_tmp_root else None)
    )


def _from_port_files(directory: Path) -> str | None:
    """From Ray 2.54. A raylet that was started again has written new ones: the newest counts."""
    newest, node = 0, None
    try:
        for path in directory.iterdir():
            if (match := _PORT_FILE.match(path.name)) and (written := path.stat().st_mtime_ns) > newest:
                newest, node = written, match[1]
    except OSError:
        return None
    return node


def _from_raylet_log(path: Path) -> str | None:
    found = _RAYLET_LINE.findall(_beginning(path))
    return found[-1].decode() if found else None


def _from_hook_file(path: Path) -> str | None:
    """Written by a hook in the Ray container of older KubeRay set-ups."""
    return ids.to_hex(_beginning(path).decode(errors="replace").strip(), ids.NODE)


def find_dashboard(directory: Path) -> str | None:
    """The address that the session's dashboard says in its log that it listens on."""
    found = _DASHBOARD_LINE.findall(_beginning(directory / "logs" / "dashboard.log"))
    return f"http://{found[-1].decode()}" if found else None


def metrics_port(directory: Path, node: str) -> int | None:
    """Where the node says its metrics; None when it does not, or not yet."""
    known = _beginning(directory / f"metrics_export_port_{node}").decode(errors="replace").strip()
    return _port(known or _port_before_2_54(_beginning(directory / "ports_by_node.json")))


def _port_before_2_54(ports_by_node: bytes) -> object:
    """One file for all nodes that share the directory, which in a pod is one."""
    try:
        nodes = msgspec.json.decode(ports_by_node, type=dict[str, dict[str, object]])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return next((ports["metrics_export_port"] for ports in nodes.values() if "metrics_export_port" in ports), None)


def autoscaler_port(directory: Path) -> int | None:
    """Where the head's autoscaler says its own metrics, from its log."""
    found = _AUTOSCALER_LINE.findall(_beginning(directory / "logs" / "monitor.log"))
    return _port(found[-1].decode()) if found else None


def _port(said: object) -> int | None:
    return int(str(said)) if re.fullmatch(r"\d{1,5}", str(said)) and 0 < int(str(said)) < 65536 else None


def _beginning(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_LOG_START)
    except OSError:
        return b""


def raylet(directory: Path) -> Raylet:
    """Whether somebody listens on the raylet's socket. Asked only at a session's beginning and end."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(directory / "sockets" / "raylet"))
        except (FileNotFoundError, ConnectionRefusedError):
            return Raylet.GONE
        except OSError:
            return Raylet.UNKNOWN  # no permission, or a path too long for a socket
    return Raylet.ALIVE


def started_ms(directory: Path, now_ms: int) -> int:
    """When the session began: its name has no time zone, but the oldest thing in its directory has a time."""
    try:
        times = [int(path.lstat().st_mtime * 1000) for path in directory.iterdir()]
    except OSError:
        times = []
    return min([now_ms, *times])
