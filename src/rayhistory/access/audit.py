"""Who opened what: one line when somebody begins to look at a session, and one for every time that they may not."""

import logging
import time
from collections import OrderedDict
from logging.handlers import WatchedFileHandler

from rayhistory import jsonlog
from rayhistory.access.visitor import Visitor
from rayhistory.errors import Misconfigured

log = logging.getLogger("rayhistory.audit")

_SAME_VISIT = 600.0
_MOST_VISITS = 10_000


def set_up(path: str) -> None:
    """Lines go to a file of their own, which may be rotated by others."""
    try:
        handler = WatchedFileHandler(path)
    except OSError as error:
        raise Misconfigured(f"--audit-log={path}: {error.strerror}") from None
    handler.setFormatter(jsonlog.JsonFormatter())
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


class Audit:
    def __init__(self) -> None:
        self._visits: OrderedDict[tuple[str, str, str], float] = OrderedDict()

    def opened(self, visitor: Visitor, what: str, address: str) -> None:
        """A dashboard asks again and again: that is one visit, until it has been silent for ten minutes."""
        key, now = (visitor.name, what, address), time.monotonic()
        before = self._visits.get(key)
        self._visits[key] = now
        self._visits.move_to_end(key)
        if len(self._visits) > _MOST_VISITS:
            self._visits.popitem(last=False)
        if before is None or now - before > _SAME_VISIT:
            log.info("opened", extra={"visitor": visitor.name, "session": what, "address": address})

    def signed_in(self, visitor: Visitor, address: str) -> None:
        log.info("signed in", extra={"visitor": visitor.name, "address": address})

    def refused(self, visitor: str, what: str, address: str, reason: str) -> None:
        said = {"visitor": visitor, "asked_for": what[:500], "address": address, "reason": reason}
        log.warning("refused", extra=said)
