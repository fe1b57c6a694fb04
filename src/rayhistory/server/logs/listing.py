"""Listings of a node's log files in Ray's form: filtered by a glob, with directories, in groups."""

from collections.abc import Iterable

from rayhistory.logs.path_glob import PathGlob


def group_logs(paths: Iterable[str], glob: str) -> dict[str, list[str]]:
    """Return the matching files and directories (with a final slash), grouped by the process that wrote them."""
    pattern = PathGlob(glob)
    entries = {entry for path in paths for entry in _with_folders(path) if pattern.matches(entry)}
    groups: dict[str, list[str]] = {}
    for entry in sorted(entries):
        groups.setdefault(log_group(entry), []).append(entry)
    return groups


def _with_folders(path: str) -> Iterable[str]:
    yield path
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path + "/"


def log_group(name: str) -> str:
    if "worker" in name and name.endswith(".out"):
        return "worker_out"
    if "worker" in name and name.endswith(".err"):
        return "worker_err"
    if "core-worker" in name and name.endswith(".log"):
        return "core_worker"
    if "core-driver" in name and name.endswith(".log"):
        return "driver"
    for marker, group in _GROUP_MARKERS:
        if marker in name:
            return group
    return "internal"


_GROUP_MARKERS = (
    ("raylet.", "raylet"),
    ("gcs_server.", "gcs_server"),
    ("log_monitor", "internal"),
    ("monitor", "autoscaler"),
    ("agent.", "agent"),
    ("dashboard.", "dashboard"),
)
