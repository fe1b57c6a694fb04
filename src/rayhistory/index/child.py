"""Heavy work in a process of its own, which does not outlive whoever asked for it."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator


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
