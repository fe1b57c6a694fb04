"""A memory limit around a whole Ray node, as a container has: a memory cgroup, mounted where Ray looks for its own.

Needs root and the memory controller of cgroup version 1 or 2.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_VERSION_1 = Path("/sys/fs/cgroup/memory")
_VERSION_2 = Path("/sys/fs/cgroup")


@contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[list[str]]:
    """Create a cgroup. Yield the start of a command that runs the rest of its arguments below the limit."""
    parent = _parent()
    if parent is None:
        raise PermissionError("no memory cgroup can be created: this needs root and the memory controller")
    group = parent / f"rayhistory-test-{os.getpid()}"
    group.mkdir()
    try:
        name = "memory.limit_in_bytes" if parent == _VERSION_1 else "memory.max"
        (group / name).write_text(str(limit_bytes))
        enter = f'echo $$ > {group}/cgroup.procs && mount --bind {group} {parent} && exec "$@"'
        yield ["unshare", "--mount", "--", "sh", "-c", enter, "sh"]
    finally:
        with suppress(OSError):
            group.rmdir()


def can_limit_memory() -> bool:
    """Return True if this machine lets us create a memory cgroup and mount it in a namespace."""
    try:
        with memory_cgroup(1 << 30) as prefix:
            return subprocess.run([*prefix, sys.executable, "-c", ""], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def _parent() -> Path | None:
    if (_VERSION_1 / "memory.limit_in_bytes").exists():
        return _VERSION_1
    controllers = _VERSION_2 / "cgroup.subtree_control"
    return _VERSION_2 if controllers.exists() and "memory" in controllers.read_text().split() else None
