"""The gaps of a session, described for people and programs."""

from rayhistory import gap_descriptions
from rayhistory.index.query.query import Filter, Query, Row
from rayhistory.server.history_api.api_types import GapTotal, SessionGap, SessionGaps
from rayhistory.server.view import SessionView

MAX_GAPS_PER_CODE = 1_000
_MAX_CODES = 1_000


async def read_gaps(view: SessionView) -> SessionGaps:
    """Return at most MAX_GAPS_PER_CODE gaps of each code, and for each code the number of all its gaps."""
    by_code = await view.index.group(Query("gaps", limit=_MAX_CODES), ("kind",), summed="count")
    rows: list[Row] = []
    for group in by_code:
        same_code = Filter("kind", "in", (group["kind"],))
        rows += await view.rows("gaps", same_code, sort=("detail", "source"), limit=MAX_GAPS_PER_CODE)
    return SessionGaps(
        [_describe(row["kind"], row["count"] or 0, row["source"] or "", row["detail"] or "") for row in rows],
        complete=gap_descriptions.is_complete(group["kind"] for group in by_code),
        totals={group["kind"]: GapTotal(group["count"], group["sum"] or 0) for group in by_code},
    )


def _describe(code: str, count: int, place: str, detail: str) -> SessionGap:
    kind = gap_descriptions.describe(code)
    return SessionGap(
        code=code,
        count=count,
        place=place,
        detail=detail,
        summary=kind.summary(count),
        meaning=kind.meaning,
        remedy=kind.remedy,
        loss=kind.is_loss,
    )
