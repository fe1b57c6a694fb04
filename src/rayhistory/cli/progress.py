"""The progress of a command on standard error: a bar on a terminal, or lines about a long list of sessions."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from rayhistory.web.format import format_duration, plural

_MIN_DONE_FOR_ESTIMATE = 3
_MAX_DETAILS = 3
"""Maximum number of running sessions whose current step is shown."""


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with the completed and the total number of bytes."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not os.isatty(2)) as bar:
        task = bar.add_task(text)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class BacklogProgress:
    """Counts the sessions of a backlog that are done and failed, and estimates the time left."""

    def __init__(self, total: int, running: Callable[[], dict[str, str]]) -> None:
        """`running` returns the current step of each session that is being indexed."""
        self._total = total
        self._running = running
        self._done = self._failed = 0
        self._began = time.monotonic()

    def add(self, *, succeeded: bool) -> None:
        self._done += 1
        self._failed += not succeeded

    def line(self, now: float) -> str:
        """Return one line, such as `312 of 4,000 sessions done, 2 failed, about 41m left`."""
        parts = [f"{self._done:,} of {plural(self._total, 'session')} done"]
        if self._failed:
            parts.append(f"{self._failed:,} failed")
        if self._done >= _MIN_DONE_FOR_ESTIMATE:
            left_s = (now - self._began) * (self._total - self._done) / self._done
            parts.append(f"about {format_duration(round(left_s) * 1000)} left")
        steps = list(self._running().items())[:_MAX_DETAILS]
        return "; ".join([", ".join(parts), *(f"{session}: {step}" for session, step in steps)])

    @asynccontextmanager
    async def shown(self, interval_s: float) -> AsyncIterator[None]:
        """Print a line to standard error at each interval, until the context ends."""

        async def show() -> None:
            while True:
                await asyncio.sleep(interval_s)
                print(self.line(time.monotonic()), file=sys.stderr, flush=True)

        task = asyncio.create_task(show())
        try:
            yield
        finally:
            task.cancel()
