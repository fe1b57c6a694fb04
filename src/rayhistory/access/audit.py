"""Audit log: one line per visit of a session, sign-in, SQL query and denied request."""

import logging
from logging.handlers import WatchedFileHandler

from rayhistory import jsonlog
from rayhistory.access.visitor import Visitor
from rayhistory.errors import InvalidSetting
from rayhistory.lru import LruCache

log = logging.getLogger("rayhistory.audit")

_VISIT_TTL_S = 600.0
_MAX_VISITS = 10_000
_MAX_RESOURCE_CHARS = 500
_MAX_QUERY_CHARS = 2_000


def log_to_file(path: str) -> None:
    """Write audit lines to a separate file. logrotate may rotate it."""
    try:
        handler = WatchedFileHandler(path)
    except OSError as error:
        raise InvalidSetting(f"--audit-log={path}: {error.strerror}") from None
    handler.setFormatter(jsonlog.JsonFormatter())
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


class AuditLog:
    def __init__(self) -> None:
        self._visits: LruCache[tuple[str, str, str], bool] = LruCache(_MAX_VISITS, ttl=_VISIT_TTL_S)

    def session_opened(self, visitor: Visitor, session: str, address: str) -> None:
        """Log the first request of a visit.

        Dashboards poll, so a visit ends only after ten minutes without a request.
        """
        visit = visitor.name, session, address
        if visit not in self._visits:
            log.info(
                "visitor opened a session", extra={"visitor": visitor.name, "session": session, "address": address}
            )
        self._visits.put(visit, True)

    def signed_in(self, visitor: Visitor, address: str) -> None:
        log.info("visitor signed in", extra={"visitor": visitor.name, "address": address})

    def sql_query(self, visitor: Visitor, session: str, query: str) -> None:
        fields = {"visitor": visitor.name, "session": session, "query": query[:_MAX_QUERY_CHARS]}
        log.info("visitor ran an SQL query", extra=fields)

    def access_denied(self, visitor: str, resource: str, address: str, reason: str) -> None:
        fields = {
            "visitor": visitor,
            "resource": resource[:_MAX_RESOURCE_CHARS],
            "address": address,
            "reason": reason,
        }
        log.warning("access denied", extra=fields)
