"""Heavy work in a process of its own, which does not outlive whoever asked for it."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator

_PR_SET_PDEATHSIG = 1


@contextlib.asynccontextmanager
async def child_process(module: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`python -m module` with pipes. It leads a group of its own, so that the processes that it starts end with it."""
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


def end_with_parent(parent: int) -> None:
    """Called in a child: it is killed when that process ends, even when that was killed. Only Linux can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # too late
            os._exit(1)
