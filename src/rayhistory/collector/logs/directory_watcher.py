"""Detect with inotify that log files are created, moved or removed.

Writes are not watched, because a busy log would cause a thousand notifications per second. A periodic scan finds new
bytes.
"""

import asyncio
import logging
from collections.abc import Iterable

from inotify_simple import INotify, flags

from rayhistory.collector.supervise import wait_for_event

log = logging.getLogger(__name__)

_MASK = flags.CREATE | flags.MOVED_FROM | flags.MOVED_TO | flags.DELETE | flags.ONLYDIR


class DirectoryWatcher:
    """Reports changes in directories. If inotify is unavailable it reports none, and callers poll."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._followed: set[str] = set()
        self._inotify: INotify | None = None

    def __enter__(self) -> "DirectoryWatcher":
        try:
            self._inotify = INotify(nonblocking=True)
        except OSError as error:
            self._disable(error)
        else:
            asyncio.get_running_loop().add_reader(self._inotify.fileno(), self._read)
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def follow(self, folders: Iterable[str]) -> None:
        for folder in set(folders) - self._followed:
            if self._inotify is None:
                return
            try:
                self._inotify.add_watch(folder, _MASK)
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                continue
            except OSError as error:
                self._disable(error)  # the user's or the kernel's limit
                return
            self._followed.add(folder)

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a change; return False on timeout."""
        self._changed.clear()
        return await wait_for_event(self._changed, timeout_s)

    def _read(self) -> None:
        if self._inotify:
            self._inotify.read(timeout=0)
            self._changed.set()

    def _disable(self, error: OSError) -> None:
        log.info("inotify unavailable, polling log files", extra={"reason": str(error)})
        self._close()

    def _close(self) -> None:
        if self._inotify:
            asyncio.get_running_loop().remove_reader(self._inotify.fileno())
            self._inotify.close()
            self._inotify = None
