"""The filters of the list of sessions, parsed from a URL."""

import re
import time

from starlette.datastructures import QueryParams

from rayhistory import web
from rayhistory.errors import UsageError
from rayhistory.server.http.list_params import (
    age_ms,
    parse_choice,
    parse_flag,
    parse_owner,
    parse_since,
    parse_words,
)
from rayhistory.utc import parse_utc_ms
from rayhistory.web import SessionFilters

_DAY_MS = 24 * 3600 * 1000
_DATE = re.compile("[0-9]{4}-?[0-9]{2}-?[0-9]{2}")
_SHORT_NUMBER = re.compile("[0-9]{1,7}")


def parse_session_filters(params: QueryParams) -> SessionFilters:
    filters = SessionFilters(
        q=parse_words(params),
        namespace=params.get("namespace") or None,
        cluster=params.get("cluster") or None,
        failed=parse_flag(params, "failed"),
        state=parse_choice(params, "state", web.SESSION_STATES),  # type: ignore[arg-type]
        owner=parse_owner(params, tuple(web.OWNERS)),
        since=parse_since(params),
        start=params.get("from") or None,
        end=params.get("to") or None,
        sort=parse_choice(params, "sort", web.SORTS),
        page=params.get("page") or None,
    )
    started_between(filters)  # checks the times
    return filters


def started_between(filters: SessionFilters) -> tuple[int | None, int | None]:
    """Return the first and last start time that the filters allow, in ms since 1970."""
    start, end = _parse_time("from", filters.start), _parse_time("to", filters.end, whole_day=True)
    if filters.since and (age := age_ms(filters.since)) is not None:
        start = max(start or 0, int(time.time() * 1000) - age)
    return start, end


def _parse_time(name: str, text: str | None, *, whole_day: bool = False) -> int | None:
    """Parse a date, a time with or without a time zone (default UTC), or ms since 1970."""
    if not text:
        return None
    try:
        ms = None if _SHORT_NUMBER.fullmatch(text) else parse_utc_ms(text)  # 2026 is a year, not milliseconds
    except ValueError:
        ms = None
    if ms is None:
        raise UsageError(f"invalid {name} {text!r}: use a date or a time such as 2026-11-15 or 2026-11-15T19:20Z")
    return ms + _DAY_MS if whole_day and _DATE.fullmatch(text) else ms
