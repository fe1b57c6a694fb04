"""Parse points in time, and limit clock differences."""

import re
from datetime import UTC, datetime

_MILLISECONDS = re.compile(r"[0-9]{1,15}")
_BASIC_DATE_DIGITS = 8


MAX_CLOCK_SKEW_S = 600.0
"""Maximum difference by which a node's clock may be ahead of the store's clock. Later times are ignored."""


def parse_utc_ms(text: str) -> int:
    """Return milliseconds since 1970 from ISO 8601 or milliseconds. A time without a time zone is UTC.

    Eight digits are an ISO 8601 basic date (20261115). All other numbers are milliseconds. Raises ValueError.
    """
    if _MILLISECONDS.fullmatch(text) and len(text) != _BASIC_DATE_DIGITS:
        return int(text)
    parsed = datetime.fromisoformat(text)
    return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp() * 1000)
