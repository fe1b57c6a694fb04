"""Child processes for heavy work, which do not outlive their parent."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator

import msgspec

from rayhistory.optional_packages import skip_pandas

_PR_SET_PDEATHSIG = 1


@contextlib.asynccontextmanager
async def child_process(module: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `python -m module` with pipes, in its own process group, so that its children end with it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        limit=1 << 22, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def start_work(niceness: int = 0) -> None:
    """Set up this child process before it starts its work."""
    end_with_parent(os.getppid())
    os.nice(niceness)
    skip_pandas()


def write_report(report: msgspec.Struct) -> None:
    """Report to the process that started this one, in one line on standard output."""
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


def end_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent ends, even if the parent is killed. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the call
            os._exit(1)
