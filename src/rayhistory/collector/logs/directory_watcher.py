"""Being told when files are made, moved or removed, where the kernel can; otherwise time alone decides.

Writes are not watched: a busy log would wake us a thousand times a second for what one look finds as well.
"""

import asyncio
import logging
from collections.abc import Iterable

from inotify_simple import INotify, flags

from rayhistory.collector.supervise import pause

log = logging.getLogger(__name__)

_MASK = flags.CREATE | flags.MOVED_FROM | flags.MOVED_TO | flags.DELETE | flags.ONLYDIR


class Watch:
    def __init__(self) -> None:
        self._news = asyncio.Event()
        self._followed: set[str] = set()
        self._inotify: INotify | None = None

    def __enter__(self) -> "Watch":
        try:
            self._inotify = INotify(nonblocking=True)
        except OSError as error:
            self._without(error)
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
                self._without(error)  # the user's or the kernel's limit
                return
            self._followed.add(folder)

    async def wait(self, seconds: float) -> bool:
        """True when there is news, False when the time is over."""
        self._news.clear()
        return await pause(self._news, seconds)

    def _read(self) -> None:
        if self._inotify:
            self._inotify.read(timeout=0)
            self._news.set()

    def _without(self, error: OSError) -> None:
        log.info("files are looked at by time alone: inotify cannot be used", extra={"reason": str(error)})
        self._close()

    def _close(self) -> None:
        if self._inotify:
            asyncio.get_running_loop().remove_reader(self._inotify.fileno())
            self._inotify.close()
            self._inotify = None
