"""Search a session's log files: read units, match them in threads, and let concurrent searches take turns."""

import asyncio
import heapq
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from rayhistory.errors import IndexDamaged, ProductNotBuilt, UsageError
from rayhistory.logs.path_glob import PathGlob
from rayhistory.logs.source import LogSource
from rayhistory.search.hit_counts import HitCounter
from rayhistory.search.line_context import read_context
from rayhistory.search.pattern import PatternCompiler, SearchPattern
from rayhistory.search.scan_plan import MAX_BATCH_UNITS, UNIT_BYTES, LogFile, LogUnit, ScanPlan, make_plan, restrict
from rayhistory.search.search_query import Cursor, SearchQuery, SortKey, stream_of
from rayhistory.search.unit_search import FoundLine, UnitBuffer, UnitQuery, UnitResult, line_bounds, search_unit

MAX_LINE_BYTES = 32 << 20
"""Maximum length of a line that is searched completely. Longer lines are searched up to this length."""
MAX_COUNTED_BYTES = 256 << 20
"""Maximum number of bytes to read for the line numbers of one response. Later hits have only an offset."""
_EXTENSION_BYTES = 256 << 10
_MAX_VISITOR_UNITS = 2
T = TypeVar("T")

UnitPlace = tuple[str, str, int]
"""Node, path and start of a unit."""
Scope = Mapping[tuple[str, str], tuple[tuple[int, int], ...]]
"""Files to search by node and path, and the ranges in them. No ranges mean the whole file."""


class Scanner:
    """Threads and turns for all searches of a process. Memory is limited, and searches do not block each other."""

    def __init__(self, workers: int | None = None, unit_bytes: int = UNIT_BYTES) -> None:
        workers = workers or os.cpu_count() or 1
        self.unit_bytes = unit_bytes
        self.patterns = PatternCompiler()
        self._threads = ThreadPoolExecutor(workers, "search")
        self._turns = asyncio.Semaphore(2 * workers)
        self._visitors: dict[str, tuple[asyncio.Semaphore, int]] = {}
        self._buffers: list[bytearray] = []

    def close(self) -> None:
        self.patterns.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    @asynccontextmanager
    async def turn(self, visitor: str) -> AsyncIterator[bytearray]:
        """Wait for permission to hold one unit in memory. Yield a buffer for it.

        Buffers are reused, because allocating memory takes as long as decompressing into it.
        """
        own, users = self._visitors.get(visitor) or (asyncio.Semaphore(_MAX_VISITOR_UNITS), 0)
        self._visitors[visitor] = own, users + 1
        try:
            async with own, self._turns:
                buffer = self._buffers.pop() if self._buffers else bytearray()
                yield buffer
                if len(buffer) <= 2 * self.unit_bytes:
                    self._buffers.append(buffer)  # not after an error: a thread may still write to it
        finally:
            own, users = self._visitors[visitor]
            if users == 1:
                del self._visitors[visitor]
            else:
                self._visitors[visitor] = own, users - 1
            if not self._visitors:
                self._buffers.clear()

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


class UnitIndex(Protocol):
    """The search index as a scan uses it: facts about units that have not been read."""

    async def excluded(self, units: list[LogUnit], pattern: SearchPattern) -> set[UnitPlace]:
        """Return units in which the pattern cannot match."""

    async def line_breaks(self, plan: ScanPlan) -> dict[UnitPlace, int]:
        """Return the number of line breaks of each indexed unit, except shorter units at the ends of files."""

    async def report_unindexed(self, plan: ScanPlan) -> None:
        """Request an index build if many units are not indexed."""

    @property
    def report_damage(self) -> Callable[[str], object]:
        """Report that index data cannot be read."""


class Scan:
    """One search. `lines` yields hits, and the attributes tell the progress.

    `pattern` is the compiled pattern of the query, if the caller has compiled it in a thread or for several searches.
    """

    def __init__(
        self,
        scanner: Scanner,
        logs: LogSource,
        query: SearchQuery,
        *,
        pattern: SearchPattern | None = None,
        scope: Scope | None = None,
        visitor: str = "",
        time_budget_s: float | None = None,
        unit_index: UnitIndex | None = None,
    ) -> None:
        self.scanned_bytes = 0
        self.total_bytes = 0
        self.count = 0
        self.counts = HitCounter()
        self.next: Cursor | None = None
        self._scanner = scanner
        self._logs = logs
        self._query = query
        self._pattern = pattern or query.pattern()
        self._scope = scope
        self._visitor = visitor
        self._deadline = time.monotonic() + time_budget_s if time_budget_s is not None else float("inf")
        self._unit_index = unit_index
        self._line_breaks: dict[UnitPlace, int] = {}
        self._counted_bytes = 0

    @property
    def with_counts(self) -> bool:
        return self._query.counts

    @property
    def complete(self) -> bool:
        """True if everything was searched."""
        return self.next is None

    @property
    def total(self) -> int | None:
        """The number of matching lines; None if this search did not read all of them."""
        is_counted = self.complete or self.counts.complete
        return self.count if is_counted and self._query.cursor is None else None

    async def lines(self) -> AsyncIterator[list[FoundLine]]:
        """Yield matching lines in order, in batches, up to the limit. Empty lists report progress."""
        plan = await self._plan()
        self.total_bytes = plan.total_bytes
        cursor, missing = self._query.cursor, self._query.limit
        position, size = (cursor.unit, cursor.size) if cursor else (0, 1)
        excluded = await self._use_index(plan, position)
        while position < len(plan.units):
            batch = plan.batch(position, size)
            end, hits = position + len(batch), self.count
            after = cursor.after if cursor and position == cursor.unit else None
            units = [unit for unit in batch if unit_place(unit) not in excluded]
            next_size = min(2 * size, MAX_BATCH_UNITS)
            if units or end == len(plan.units):
                found = await self._search_batch(units, missing + 1, after)
                shown, missing = found[:missing], missing - len(found)
                if self.count - hits > self._query.limit:
                    next_size = 1
                if missing < 0:
                    self.next = Cursor(plan.until_ms, plan.digest, position, size, shown[-1].key)
                elif end < len(plan.units) and (missing == 0 or time.monotonic() > self._deadline):
                    self.next = Cursor(plan.until_ms, plan.digest, end, next_size)
                await self._complete_lines(shown)
                yield shown
                if self.next:
                    async for nothing in self._count(plan, end, excluded):
                        yield nothing
                    return
            position, size = end, next_size
        self.counts.complete = cursor is None

    async def _count(self, plan: ScanPlan, position: int, excluded: set[UnitPlace]) -> AsyncIterator[list[FoundLine]]:
        """Count the matching lines of the remaining units if the query asks for it, until the time limit."""
        while self._query.counts and position < len(plan.units):
            if time.monotonic() > self._deadline:
                return
            batch = plan.batch(position, MAX_BATCH_UNITS)
            await self._search_batch([unit for unit in batch if unit_place(unit) not in excluded], 0, None)
            position += len(batch)
            yield []
        self.counts.complete = self._query.counts and self._query.cursor is None

    async def _use_index(self, plan: ScanPlan, first: int) -> set[UnitPlace]:
        """Return the units that need not be read. An unreadable index excludes none."""
        if self._unit_index is None:
            return set()
        units = plan.units[first:]
        try:
            self._line_breaks |= await self._unit_index.line_breaks(plan)
            await self._unit_index.report_unindexed(plan)
            return await self._unit_index.excluded(units, self._pattern)
        except IndexDamaged as error:
            self._unit_index.report_damage(str(error))
        except ProductNotBuilt:
            pass
        return set()

    async def _plan(self) -> ScanPlan:
        cursor = self._query.cursor
        files = await self._files()
        until = cursor.until_ms if cursor else None
        plan = await self._scanner.in_thread(
            lambda: make_plan(
                files, newest_first=self._query.newest_first, until_ms=until, unit_bytes=self._scanner.unit_bytes
            )
        )
        if cursor and (cursor.digest != plan.digest or not 0 <= cursor.unit <= len(plan.units)):
            raise UsageError("the log files have changed since this search started: search again without the cursor")
        if cursor and not 1 <= cursor.size <= MAX_BATCH_UNITS:
            raise UsageError("invalid cursor: use `next` of the previous page")
        return plan

    async def _files(self) -> list[LogFile]:
        query = self._query
        glob = PathGlob(query.file if "/" in query.file else f"**/{query.file}") if query.file else None
        nodes = [node for node in await self._logs.nodes() if not query.node or node.startswith(query.node)]
        found: list[LogFile] = []
        for node in nodes:
            for path, history in (await self._logs.histories(node)).items():
                if (glob and not glob.matches(path)) or (query.stream and stream_of(path) != query.stream):
                    continue
                if file := restrict(LogFile(node, path, history.points, history.identity), self._scope):
                    found.append(file)
        return found

    async def _search_batch(self, units: list[LogUnit], keep: int, after: SortKey | None) -> list[FoundLine]:
        """Search these units concurrently. Return the first `keep` matching lines of all units together."""
        query = self._query
        unit_query = UnitQuery(self._pattern, query.newest_first, keep, query.from_ms, query.to_ms, after)
        best: list[FoundLine] = []
        waiting = iter(units)

        async def work() -> None:
            nonlocal best
            for unit in waiting:
                result = await self._search(unit, unit_query)
                self.count += result.count
                self.counts.add(unit.file.node, unit.file.path, result.count, result.times)
                self.scanned_bytes += unit.end - unit.start
                best = heapq.nsmallest(keep, [*best, *result.best], key=lambda line: line.key)

        await _all_or_none([work() for _ in range(min(len(units), _MAX_VISITOR_UNITS))])
        return best

    async def _search(self, unit: LogUnit, query: UnitQuery) -> UnitResult:
        async with self._scanner.turn(self._visitor) as memory:
            buffer = await read_unit(self._logs, unit, memory)
            result = await self._scanner.in_thread(lambda: search_unit(unit, buffer, query))
        if unit.start % self._scanner.unit_bytes == 0 and unit.end - unit.start == self._scanner.unit_bytes:
            self._line_breaks[unit.file.node, unit.file.path, unit.start] = result.line_breaks
        return result

    async def _complete_lines(self, lines: list[FoundLine]) -> None:
        for line in sorted(lines, key=lambda each: (each.node, each.path, each.offset)):
            line.line = await self._line_number(line)
            if self._query.context:
                line.before, line.after = await read_context(self._logs, line, self._query.context)

    async def _line_number(self, line: FoundLine) -> int | None:
        number, step = line.lines_since + 1, self._scanner.unit_bytes
        for start in range(0, line.unit_start, step):
            end = min(start + step, line.unit_start)
            key = (line.node, line.path, start if end - start == step else -end)
            if key not in self._line_breaks:
                self._counted_bytes += end - start
                if self._counted_bytes > MAX_COUNTED_BYTES:
                    return None
                async with self._scanner.turn(self._visitor):
                    data = await self._logs.read(line.node, line.path, start, end)
                    self._line_breaks[key] = data.count(b"\n")
            number += self._line_breaks[key]
        return number


def unit_place(unit: LogUnit) -> UnitPlace:
    return unit.file.node, unit.file.path, unit.start


async def read_unit(logs: LogSource, unit: LogUnit, memory: bytearray | None = None) -> UnitBuffer:
    """Read a unit, the byte before it, and the rest of its last line. Use `memory` as a buffer if given."""
    file, begin = unit.file, max(0, unit.start - 1)
    data = await logs.read_large(file.node, file.path, begin, unit.end, bytearray() if memory is None else memory)
    buffer, end = UnitBuffer(data, begin), unit.end
    if data.endswith(b"\n") or line_bounds(unit, buffer) is None:
        return buffer
    parts = bytearray()
    while end < min(file.size, unit.end + MAX_LINE_BYTES):
        more = await logs.read(file.node, file.path, end, min(end + _EXTENSION_BYTES, file.size))
        stop = more.find(b"\n")
        parts += more if stop < 0 else more[: stop + 1]
        end += len(more)
        if stop >= 0 or not more:
            break
    data += parts
    return UnitBuffer(data, begin)


async def _all_or_none(work: list[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines concurrently. The first error cancels the others."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
