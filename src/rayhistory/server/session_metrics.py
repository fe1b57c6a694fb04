"""PromQL over the stored samples of the session that a request names, up to the chosen point in time."""

import asyncio

from starlette.requests import Request

from rayhistory.metrics.metrics_reader import MetricQuery, StoredMetrics
from rayhistory.metrics.sample_blocks import SampleBlocks
from rayhistory.promql.engine import QueryResult, evaluate, required_samples
from rayhistory.promql.values import Times
from rayhistory.server.http.view_routes import resolver_of, selection_of

_EVALUATION_SLOTS = 2


async def now_ms(request: Request) -> int:
    """Return the session's present: the chosen point in time, or its last sample."""
    as_of_ms = selection_of(request).as_of_ms
    if as_of_ms is not None:
        return as_of_ms
    times = await resolver_of(request).metrics_times(selection_of(request))
    return times.last_ms if times else 0


async def evaluate_query(request: Request, text: str, times: Times) -> tuple[QueryResult, StoredMetrics]:
    """Evaluate a query with the samples that it needs; also return those, for what is missing from them."""
    needed = required_samples(text, int(times[0]), int(times[-1]))
    start = min((each.start_ms for each in needed), default=0)
    end = max((each.end_ms for each in needed), default=-1)
    source, stored = await read_blocks(request, MetricQuery(None, max(0, start), end))
    async with _evaluation_slots(request):
        return await asyncio.to_thread(evaluate, text, times, source), stored


def _evaluation_slots(request: Request) -> asyncio.Semaphore:
    """Return the slots of this server: queries side by side would finish no sooner, and need the memory of all."""
    state = request.app.state
    if not hasattr(state, "evaluation_slots"):
        state.evaluation_slots = asyncio.Semaphore(_EVALUATION_SLOTS)
    slots: asyncio.Semaphore = state.evaluation_slots
    return slots


async def read_blocks(request: Request, chosen: MetricQuery) -> tuple[SampleBlocks, StoredMetrics]:
    """Read samples. None is later than the chosen point in time."""
    as_of_ms = selection_of(request).as_of_ms
    if as_of_ms is not None:
        chosen = MetricQuery(chosen.node, chosen.start, min(chosen.end, as_of_ms))
    ref = (await resolver_of(request).entry(selection_of(request))).ref
    stored = await resolver_of(request).metrics(selection_of(request), chosen)
    return await asyncio.to_thread(SampleBlocks, ref, stored.indexed, chosen.end), stored
