"""Choose the directory of the spool.

Jobs can write to Ray's temporary directory. So the spool is elsewhere, if another durable directory exists:

1. `--event-data-dir`
2. the volume that our manifests mount at /var/lib/rayhistory
3. /var/tmp, unless it is lost with its container
4. `event-data` in Ray's temporary directory, the only volume that KubeRay's operator mounts

In 2 and 3 the path contains a hash of the path of Ray's temporary directory, because several clusters with the same
name may run on a host.
"""

import hashlib
import os
from pathlib import Path

from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.settings import Settings

VOLUME = Path("/var/lib/rayhistory")
LOCAL_DISK = Path("/var/tmp")  # noqa: S108 - local, kept over a reboot, and only directories of our own are used in it
_MOUNTS = Path("/proc/self/mountinfo")
_LOST_WITH_CONTAINER = {"overlay", "aufs", "tmpfs", "ramfs"}


def spool_directory(settings: Settings, cluster: str) -> PrivateDirectory:
    ray_tmp_root, name = Path(settings.ray_tmp_root).absolute(), f"{cluster}_{settings.ray_cluster_namespace}"
    if settings.event_data_dir:
        return _directory_at(Path(settings.event_data_dir).absolute() / name, ray_tmp_root)
    key = hashlib.blake2b(str(ray_tmp_root.resolve()).encode(), digest_size=8).hexdigest()
    if VOLUME.is_dir() and os.access(VOLUME, os.W_OK):
        return PrivateDirectory(VOLUME / f"spool-{key}" / name, VOLUME)
    if os.access(LOCAL_DISK, os.W_OK) and is_durable(LOCAL_DISK):
        return PrivateDirectory(LOCAL_DISK / f"rayhistory-{os.geteuid()}" / f"spool-{key}" / name, LOCAL_DISK)
    return first_release_directory(settings, cluster)


def first_release_directory(settings: Settings, cluster: str) -> PrivateDirectory:
    """Return the default directory of release 0.1.0, in Ray's temporary directory."""
    ray_tmp_root = Path(settings.ray_tmp_root).absolute()
    path = ray_tmp_root / "event-data" / f"{cluster}_{settings.ray_cluster_namespace}"
    return PrivateDirectory(path, ray_tmp_root)


def is_durable(directory: Path, mounts: Path = _MOUNTS) -> bool:
    """Return whether a directory survives a restart of this process's container.

    In Kubernetes, only mounted volumes survive. The directory is assumed not to be one, so False is returned. In other
    containers, the result depends on the type of the directory's file system.
    """
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return False
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return True  # no Linux, so no container
    path, longest, kind = directory.resolve(), -1, ""
    for line in lines:
        fields, _, file_system = line.partition(" - ")
        mount_point = Path(fields.split()[4].encode().decode("unicode_escape"))
        if path.is_relative_to(mount_point) and len(mount_point.parts) >= longest:
            longest, kind = len(mount_point.parts), file_system.split()[0]
    return kind not in _LOST_WITH_CONTAINER


def _directory_at(path: Path, ray_tmp_root: Path) -> PrivateDirectory:
    """Return a directory that the operator chose. Directories inside Ray's directory are not trusted."""
    if path.is_relative_to(ray_tmp_root):
        return PrivateDirectory(path, ray_tmp_root)
    return PrivateDirectory(path)
