"""Search in the logs of one session, and add task, actor and URL to each hit."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import TypeVar
from urllib.parse import quote

import msgspec

from rayhistory.search.hit_counts import HitCounter
from rayhistory.search.scanner import Scan
from rayhistory.search.search_query import encode_cursor
from rayhistory.search.unit_search import FoundLine
from rayhistory.server.history_api.api_types import (
    MAX_COUNTED_PLACES,
    FileHits,
    HitCounts,
    HitHistogram,
    LogHit,
    NodeHits,
    SearchEnd,
    SearchProgress,
)
from rayhistory.server.logs.line_owners import NOBODY, LineOwner, find_owners
from rayhistory.server.view import SessionView

T = TypeVar("T", str, tuple[str, str])


class SessionSearch:
    def __init__(self, view: SessionView, scan: Scan) -> None:
        self._view = view
        self._scan = scan

    async def hits(self) -> AsyncIterator[list[LogHit]]:
        async for lines in self._scan.lines():
            owners = await find_owners(self._view, [position_of(line) for line in lines])
            yield [log_hit(self._view.ref.url, line, owners.get(position_of(line), NOBODY)) for line in lines]

    def progress(self) -> SearchProgress:
        return SearchProgress(self._scan.scanned_bytes, self._scan.total_bytes, self._scan.count, self._counts())

    def end(self) -> SearchEnd:
        scan = self._scan
        cursor = encode_cursor(scan.next) if scan.next else None
        return SearchEnd(cursor, scan.complete, scan.scanned_bytes, scan.total, self._counts())

    def _counts(self) -> HitCounts | msgspec.UnsetType:
        return hit_counts(self._scan.counts) if self._scan.with_counts else msgspec.UNSET


def hit_counts(counts: HitCounter) -> HitCounts:
    files = [FileHits(*place, hits) for place, hits in _most(counts.files)]
    nodes = [NodeHits(node, hits) for node, hits in _most(counts.nodes())]
    histogram = HitHistogram(counts.times.step_ms, sorted(counts.times.buckets.items()))
    return HitCounts(counts.complete, files, nodes, histogram)


def _most(counts: Counter[T]) -> list[tuple[T, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_COUNTED_PLACES]


def position_of(line: FoundLine) -> tuple[str, str, int]:
    return line.node, line.path, line.offset


def log_hit(session_url: str, line: FoundLine, owner: LineOwner) -> LogHit:
    return LogHit(
        node_id=line.node, file=line.path, line=line.line, offset=line.offset, text=line.text, matches=line.matches,
        at_ms=line.at_ms, task_id=owner.task_id, attempt=owner.attempt, actor_id=owner.actor_id,
        url=_line_url(session_url, line), before=line.before, after=line.after, cut=line.cut or msgspec.UNSET,
        approximate=line.approximate or msgspec.UNSET,
    )  # fmt: skip


def _line_url(session_url: str, line: FoundLine) -> str:
    """Return the URL of a line in the log viewer. With the offset, the viewer need not count lines."""
    path = f"{session_url}logs/{quote(line.node, safe='')}/{quote(line.path)}"
    if line.line is None:
        return f"{path}?offset={line.offset}#B{line.offset}"
    return f"{path}?offset={line.offset}&line={line.line}#L{line.line}"
