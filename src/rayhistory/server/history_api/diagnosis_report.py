"""The diagnosis of a session: the stored one, or computed as of a point in time."""

import asyncio

import msgspec
from starlette.requests import Request

from rayhistory.diagnosis.diagnosis_product import FILE, NAME, diagnose_index
from rayhistory.diagnosis.earlier_runs import with_earlier_runs
from rayhistory.diagnosis.findings import Diagnosis
from rayhistory.diagnosis.links import with_links
from rayhistory.diagnosis.node_samples import node_samples
from rayhistory.diagnosis.session_facts import NodeSamples
from rayhistory.errors import UsageError
from rayhistory.metrics.object_listing import MetricQuery
from rayhistory.server.http.view_routes import resolver_of, selection_of
from rayhistory.server.runs_api.run_listing import run_listing_of
from rayhistory.server.view import SessionView


async def read_diagnosis(request: Request, view: SessionView, timeout_s: float | None = None) -> Diagnosis:
    """Return the diagnosis; raise ProductNotBuilt if its first build takes longer than the timeout."""
    as_of_ms = selection_of(request).as_of_ms
    if view.products is None:
        found = await diagnose_index(view.index, view.logs, await _samples(request, as_of_ms), provisional=True)
        return with_links(found, f"{view.ref.url.rstrip('/')}@{as_of_ms}")
    product = await view.products.wait(NAME, timeout_s)
    path = await product.file(FILE)
    try:
        data = await asyncio.to_thread(path.read_bytes)
        found = await asyncio.to_thread(msgspec.json.decode, data, type=Diagnosis)
    except (OSError, msgspec.MsgspecError) as error:
        raise product.damaged(str(error)) from None
    earlier = await run_listing_of(request).earlier_runs(request, view.ref.identity)
    return with_links(with_earlier_runs(found, earlier), view.ref.url)


async def _samples(request: Request, as_of_ms: int | None) -> dict[str, NodeSamples]:
    """Return the samples up to a point in time; none if there are too many."""
    query = MetricQuery(end=as_of_ms) if as_of_ms is not None else MetricQuery()
    try:
        stored = await resolver_of(request).metrics(selection_of(request), query)
    except UsageError:
        return {}
    return await asyncio.to_thread(node_samples, stored.samples)
