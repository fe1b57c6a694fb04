"""Run one command, and stop it with all its descendants on request.

Ray's processes do not stay in one process group: each job's entrypoint and supervisor have their own sessions, workers
overwrite their command lines and environment, and orphans move to init. So Ray is started below this small process. As
a subreaper (PR_SET_CHILD_SUBREAPER), it becomes the parent of orphans, and all of Ray's processes stay in one tree. It
is a separate process, because the attribute applies to a whole process, and ours has other children.

It stops the command at the end of standard input. This also happens when our process is killed, so Ray and the
collector are always stopped. SIGQUIT kills the command at once.

It runs as a file in a bare interpreter (`python -I -S subreaper.py GRACE COMMAND…`) and uses only the standard library.
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

KILLED = 128 + signal.SIGKILL
"""Exit code if the command did not exit within its grace period."""

_PR_SET_CHILD_SUBREAPER = 36


def main(argv: list[str]) -> int:
    grace, command = float(argv[0]), argv[1:]
    # Handlers, not SIG_IGN, which the command would inherit.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    kill_now: list[int] = []
    signal.signal(signal.SIGQUIT, lambda number, _: kill_now.append(number))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    _wait_for_stop(child, kill_now)
    _terminate(child, grace, kill_now)
    _kill_tree(child)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _wait_for_stop(child: subprocess.Popen[bytes], kill_now: list[int]) -> None:
    """Return when standard input ends, at SIGQUIT, or when the command exits."""
    while child.poll() is None and not kill_now:
        _reap_orphans(child)
        readable, _, _ = select.select([0], [], [], 0.2)
        if readable and not os.read(0, 4096):
            return


def _terminate(child: subprocess.Popen[bytes], grace: float, kill_now: list[int]) -> None:
    """Send SIGTERM only to the command, because `ray start` stops its processes in the right order."""
    deadline = time.monotonic() + grace
    child.terminate()
    while child.poll() is None and time.monotonic() < deadline and not kill_now:
        _reap_orphans(child)
        time.sleep(0.05)


def _kill_tree(child: subprocess.Popen[bytes]) -> None:
    while left := descendants(os.getpid()):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
        child.poll()
        _reap_orphans(child)
    # Without /proc no descendants are found, so kill the command itself.
    child.kill()
    child.wait()


def _reap_orphans(child: subprocess.Popen[bytes]) -> None:
    """Collect the exit status of orphans, so that they do not become zombies. Popen does this for the command."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid == child.pid:
                return
            os.waitpid(ended.si_pid, 0)


def descendants(root: int) -> list[int]:
    children = _children()
    found, pending = list[int](), [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def _children() -> dict[int, list[int]]:
    children = defaultdict[int, list[int]](list)
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # pid (name) state parent …; the name may contain anything
            parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            children[parent].append(int(entry.name))
    return children


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
