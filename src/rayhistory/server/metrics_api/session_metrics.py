"""PromQL over the stored samples of the session that a request names, up to the chosen point in time."""

from contextlib import AbstractAsyncContextManager

import msgspec
import numpy as np
from starlette.requests import Request

from rayhistory.concurrency import Turns, in_thread_to_end
from rayhistory.lru import LruCache
from rayhistory.metrics.metrics_reader import StoredTiles
from rayhistory.metrics.object_listing import MetricQuery, MetricsGap
from rayhistory.metrics.sample_querier import SampleQuerier
from rayhistory.metrics.step_samples import StepSamples
from rayhistory.promql.arrays import Times
from rayhistory.promql.engine import QueryResult, evaluate, metrics_at_steps, named_metrics, samples_at
from rayhistory.promql.values import RangeVector, Vector
from rayhistory.server.http.admission import caller_of
from rayhistory.server.http.view_routes import resolver_of, selection_of

_EVALUATION_SLOTS = 2
"""More evaluations at once would not be faster but need more memory."""
_QUERY_SLOTS = 8
"""Maximum number of queries that read samples or are evaluated."""
_CACHE_BYTES = 32 << 20


async def now_ms(request: Request) -> int:
    """Return the end of the session's data: the chosen point in time, or the last sample."""
    as_of_ms = selection_of(request).as_of_ms
    if as_of_ms is not None:
        return as_of_ms
    times = await resolver_of(request).metrics_times(selection_of(request))
    return times.last_ms if times else 0


class Evaluated(msgspec.Struct, frozen=True):
    """The result of a query, and notes on missing samples."""

    result: QueryResult
    gaps: list[MetricsGap]
    series_dropped: int

    def memory_bytes(self) -> int:
        value = self.result.value
        if isinstance(value, RangeVector):
            return 16 * value.samples + 500 * len(value.rows) + 2_000
        return (9 * value.values.size + 500 * len(value.labels) if isinstance(value, Vector) else 0) + 2_000


class QueryCache:
    """Evaluates queries and caches the results, because visitors look at the same charts. Visitors take turns.

    A result is used again only while the samples that its query reads are unchanged.
    """

    def __init__(self, max_bytes: int = _CACHE_BYTES) -> None:
        self._results: LruCache[tuple[str, int, tuple[int, ...]], Evaluated] = LruCache(
            max_bytes, cost=Evaluated.memory_bytes
        )
        self._queries, self._evaluations = Turns(_QUERY_SLOTS), Turns(_EVALUATION_SLOTS)

    def turn(self, request: Request) -> AbstractAsyncContextManager[None]:
        """Wait until the visitor may read samples."""
        return self._queries.take(caller_of(request))

    async def evaluate(self, request: Request, text: str, times: Times) -> Evaluated:
        needed = samples_at(text, times)
        start = min((each.start_ms for each in needed), default=0)
        end = max((each.end_ms for each in needed), default=-1)
        chosen = _until_as_of(request, MetricQuery(None, max(0, start), end))
        version = await resolver_of(request).metrics_version(selection_of(request), chosen)
        key = text, version, (int(times[0]), int(times[-1]), times.size, chosen.end)
        found = self._results.get(key)
        if found is None:
            at_steps = StepSamples(np.unique(np.minimum(times, chosen.end)), metrics_at_steps(text, times))
            async with self.turn(request):
                source, stored = await open_querier(request, chosen, named_metrics(text, times), at_steps)
                async with self._evaluations.take(caller_of(request)):
                    result = await in_thread_to_end(lambda: evaluate(text, times, source))
            found = Evaluated(result, stored.gaps, stored.series_dropped)
            self._results.put(key, found)
        return found


async def evaluate_query(request: Request, text: str, times: Times) -> Evaluated:
    """Evaluate a query with the samples that it needs."""
    return await query_cache_of(request).evaluate(request, text, times)


def query_cache_of(request: Request) -> QueryCache:
    state = request.app.state
    if not hasattr(state, "query_cache"):
        state.query_cache = QueryCache()
    cache: QueryCache = state.query_cache
    return cache


async def open_querier(
    request: Request, chosen: MetricQuery, metrics: list[str] | None = None, steps: StepSamples | None = None
) -> tuple[SampleQuerier, StoredTiles]:
    """Return a querier for the stored samples up to the chosen point in time. The caller waits for its turn before."""
    chosen = _until_as_of(request, chosen)
    ref = (await resolver_of(request).entry(selection_of(request))).ref
    stored = await resolver_of(request).metric_tiles(selection_of(request), chosen, metrics, steps)
    return SampleQuerier(ref, stored.tiles, chosen.end), stored


async def open_labels(
    request: Request, chosen: MetricQuery, metrics: list[str] | None = None
) -> tuple[SampleQuerier, StoredTiles]:
    """Return a querier for the labels of stored series, which has no samples."""
    chosen = _until_as_of(request, chosen)
    ref = (await resolver_of(request).entry(selection_of(request))).ref
    stored = await resolver_of(request).metric_labels(selection_of(request), chosen, metrics)
    return SampleQuerier(ref, stored.tiles, chosen.end), stored


def _until_as_of(request: Request, chosen: MetricQuery) -> MetricQuery:
    as_of_ms = selection_of(request).as_of_ms
    return chosen if as_of_ms is None else MetricQuery(chosen.node, chosen.start, min(chosen.end, as_of_ms))
