"""The gaps of a session, described for people and programs."""

from rayhistory import gaps
from rayhistory.server.history_api.api_types import SessionGap, SessionGaps
from rayhistory.server.view import SessionView


async def read_gaps(view: SessionView) -> SessionGaps:
    rows = await view.rows("gaps", sort=("kind", "detail", "source"))
    return SessionGaps(
        [_describe(row["kind"], row["count"] or 0, row["source"] or "", row["detail"] or "") for row in rows],
        complete=gaps.is_complete(row["kind"] for row in rows),
    )


def _describe(code: str, count: int, place: str, detail: str) -> SessionGap:
    kind = gaps.describe(code)
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
