"""What is going on in Ray's temporary directory: which session, which node, is its raylet there.

Only local files are looked at: a thousand collectors must not ask the head who they are.
"""

import hashlib
import logging
import os
import re
import socket
import stat
import time
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import msgspec

from rayhistory import ids
from rayhistory.collector.walk import MOST_FILES, walk
from rayhistory.layout.session import is_session_name

log = logging.getLogger(__name__)

_PORT_FILE = re.compile(r"[a-z_]+_port_([0-9a-f]{56})\Z")
_RAYLET_LOG = re.compile(r"raylet(\.\d+)?\.out\Z")
_RAYLET_LINE = re.compile(rb"Raylet of id, ([0-9a-f]{56}) started")
_LONGEST_LINE = 128
_DASHBOARD_LINE = re.compile(rb"Dashboard head http address: (?:https?://)?([0-9A-Za-z.\[\]:-]+:\d+)")
_AUTOSCALER_LINE = re.compile(rb"Starting autoscaler metrics server on port (\d{1,5})\n")
_READ = 1 << 20
_MOST_READ = 1 << 30
_QUIET = 60.0  # a raylet writes its state every 10 s
_MOST_REMEMBERED = 256


class Raylet(Enum):
    ALIVE = "alive"
    GONE = "gone"


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
        or _from_raylet_logs(directory / "logs")
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


def _from_raylet_logs(logs: Path) -> str | None:
    """A raylet says its id once, at its beginning: that may be anywhere in its log, or in one that was rotated away."""
    try:
        with os.scandir(logs) as inside:
            found = [(entry.stat().st_mtime_ns, entry.path) for entry in inside if _RAYLET_LOG.match(entry.name)]
    except OSError:
        return None
    return next((node for _, path in sorted(found, reverse=True) if (node := _last_raylet(Path(path)))), None)


_read_so_far: dict[tuple[Path, int], tuple[int, str | None]] = {}
"""Of each file, how far it was read, and the last id until there: only what is new is read, every second."""


def _last_raylet(path: Path) -> str | None:
    try:
        with opened(path) as file:
            status = os.fstat(file.fileno())
            key = path, status.st_ino
            end, node = _read_so_far.pop(key, (0, None))
            if end > status.st_size:
                end, node = 0, None
            file.seek(max(0, end - _LONGEST_LINE, status.st_size - _MOST_READ))
            rest = b""
            while chunk := file.read(min(_READ, max(0, status.st_size - file.tell()))):
                for found in _RAYLET_LINE.findall(rest + chunk):
                    node = found.decode()
                rest = chunk[-_LONGEST_LINE:]
            _read_so_far[key] = file.tell(), node
    except OSError:
        return None
    for old in list(_read_so_far)[:-_MOST_REMEMBERED]:
        _read_so_far.pop(old, None)
    return node


def nameless(ray_tmp_root: Path) -> str:
    """Stands for a node that nobody names: always the same here, and another one elsewhere."""
    here = f"{socket.gethostname()} {ray_tmp_root.resolve()}"
    return f"unknown-{hashlib.blake2b(here.encode(), digest_size=8).hexdigest()}"


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
        with opened(path) as file:
            return file.read(_READ)
    except OSError:
        return b""


def opened(path: Path) -> BinaryIO:
    """A file of others. Raises OSError for what is none: whoever opens a pipe waits, perhaps for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"not a regular file: {path}")
    return open(descriptor, "rb")  # noqa: PTH123 - there is only the descriptor


def raylet(directory: Path) -> Raylet:
    """Whether somebody listens on the raylet's socket. Asked only at a session's beginning and end.

    Where that may not be asked (Ray is another user's, or the path is too long for a socket), logs that grow tell.
    """
    path = directory / "sockets" / "raylet"
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            path.stat()  # a path that is too long may also lead to nothing
            probe.connect(str(path))
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return Raylet.GONE
        except OSError as error:
            _say_unasked(directory, str(error))
            return Raylet.ALIVE if _are_growing(directory / "logs") else Raylet.GONE
    return Raylet.ALIVE


@lru_cache(maxsize=64)
def _say_unasked(directory: Path, reason: str) -> None:
    """Once."""
    log.warning(
        "the raylet cannot be asked whether it is there: its logs tell, a minute later",
        extra={"directory": str(directory), "reason": reason},
    )


def _are_growing(logs: Path) -> bool:
    walked = walk(str(logs), MOST_FILES)
    newest = max((entry.modified_ns for entry in walked.entries), default=0) if walked else 0
    return time.time_ns() - newest <= _QUIET * 10**9


def started_ms(directory: Path, now_ms: int) -> int:
    """When the session began: its name has no time zone, but the oldest thing in its directory has a time."""
    try:
        times = [int(path.lstat().st_mtime * 1000) for path in directory.iterdir()]
    except OSError:
        times = []
    return min([now_ms, *times])
