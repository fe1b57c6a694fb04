"""Runs one command and, when told to, ends it with everything that it ever started.

Ray's processes do not stay in one process group: each job's entrypoint and its watcher are sessions of their
own, workers overwrite their command lines and environment, and whoever loses its parent moves to init. So
Ray is started below this small process, which the kernel makes the new parent of such orphans
(PR_SET_CHILD_SUBREAPER): whatever Ray starts stays in one tree and can be found from its root. It is a
process of its own, because being a subreaper is a property of a whole process, and ours has other children.

The order to stop is the end of standard input. That also comes when our process is killed and can say
nothing more, so no Ray is ever left behind.

It is run as a file by a bare interpreter (`python -I -S keeper.py GRACE COMMAND…`): standard library only.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def main(argv: list[str]) -> int:
    grace, command = float(argv[0]), argv[1:]
    # Handlers, not SIG_IGN: the command must not inherit our deafness.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    _wait_for_order(child)
    _terminate(child, grace)
    _kill_tree(child)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _wait_for_order(child: subprocess.Popen[bytes]) -> None:
    """Return when standard input ends, or when the command itself does."""
    while child.poll() is None:
        _bury_adopted(child)
        readable, _, _ = select.select([0], [], [], 0.2)
        if readable and not os.read(0, 4096):
            return


def _terminate(child: subprocess.Popen[bytes], grace: float) -> None:
    """SIGTERM to `ray start` alone: it ends its processes in the order that they need."""
    deadline = time.monotonic() + grace
    child.terminate()
    while child.poll() is None and time.monotonic() < deadline:
        _bury_adopted(child)
        time.sleep(0.05)


def _kill_tree(child: subprocess.Popen[bytes]) -> None:
    while left := descendants(os.getpid()):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
        child.poll()
        _bury_adopted(child)
    # Nothing is left, except where there is no /proc to look into.
    child.kill()
    child.wait()


def _bury_adopted(child: subprocess.Popen[bytes]) -> None:
    """Take the exit status of orphans, so that none stays a zombie; the command's own is left to Popen."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid == child.pid:
                return
            os.waitpid(ended.si_pid, 0)


def descendants(root: int) -> list[int]:
    children = _children()
    found, todo = list[int](), [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _children() -> dict[int, list[int]]:
    children = defaultdict[int, list[int]](list)
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # pid (name) state parent …, where the name may hold anything
            parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            children[parent].append(int(entry.name))
    return children


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
