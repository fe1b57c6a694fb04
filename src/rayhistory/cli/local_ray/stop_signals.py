"""Signals that end a recording: Ctrl-C, SIGTERM and SIGHUP.

Without handlers, SIGTERM would end our process at once, and the rest of the session would not be recorded.
"""

import asyncio
import signal
from types import TracebackType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Cancels the current task at a signal. After `defer`, the first signal sets an event instead.

    A cancelled task ends with SystemExit and the signal's exit code. Signals within `repeat_s` of the first are
    ignored: programs such as `timeout` signal our process and then its whole process group.
    """

    def __init__(self, repeat_s: float = 1.0) -> None:
        self._number = 0
        self._repeat_s = repeat_s
        self._first: float | None = None
        self._deferred: asyncio.Event | None = None
        self._task: asyncio.Task[object] | None = None
        # Under nohup, the end of the terminal stays ignored. Shells ignore SIGINT too, but for every background job.
        is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._handled = [number for number in _SIGNALS if not (number is signal.SIGHUP and is_nohup)]

    @property
    def exit_code(self) -> int:
        return 128 + self._number

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        for number in self._handled:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in self._handled:
            asyncio.get_running_loop().remove_signal_handler(number)
        if isinstance(error, asyncio.CancelledError) and self._number:
            raise SystemExit(self.exit_code) from None

    def defer(self) -> asyncio.Event:
        """Return an event. From now on, the first signal sets this event, and only a second signal cancels the task."""
        self._deferred = asyncio.Event()
        return self._deferred

    def _on_signal(self, number: int) -> None:
        now = asyncio.get_running_loop().time()
        if self._first is not None and now - self._first < self._repeat_s:
            return
        self._first = now if self._first is None else self._first
        self._number = number
        if self._deferred is not None and not self._deferred.is_set():
            self._deferred.set()
        elif self._task is not None:
            self._task.cancel()
