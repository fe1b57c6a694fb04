"""The sessions of a comparison. Each is admitted, then read from the run table or summarized."""

import asyncio

from starlette.requests import Request

from rayhistory.errors import UsageError
from rayhistory.runs.comparison import MAX_SESSIONS, SessionComparison, compare_sessions
from rayhistory.runs.session_summary import StoredSummary, decode_summary
from rayhistory.runs.summary_product import FILE, NAME
from rayhistory.server.http.admission import admission_of
from rayhistory.server.http.view_routes import resolver_of
from rayhistory.server.runs_api.run_listing import run_listing_of
from rayhistory.sessions.selection import Selection, parse_session_path

_TIMEOUT_S = 20.0


def session_names(request: Request) -> list[str]:
    """Return the sessions that a URL names; `a` and `b` are short for the first two."""
    params = request.query_params
    names = [*params.getlist("a"), *params.getlist("b"), *params.getlist("session")]
    return [name.strip().removeprefix("/s/").strip("/") for name in names if name.strip()]


async def compare_requested(request: Request) -> SessionComparison:
    """Compare the sessions that a request names.

    Raise AccessDenied if the visitor may not see one of them. This is checked before any session is looked up.
    """
    names = session_names(request)
    if not 2 <= len(names) <= MAX_SESSIONS:
        raise UsageError(f"compare 2 to {MAX_SESSIONS} sessions: session=namespace/cluster/session, twice or more")
    selections = [_selection(name) for name in names]
    for selection in selections:
        await admission_of(request).admit(request, selection)
    stored = await asyncio.gather(*(_stored(request, selection) for selection in selections))
    return await asyncio.to_thread(compare_sessions, stored)


def _selection(name: str) -> Selection:
    selection, rest = parse_session_path(name)
    if rest:
        raise UsageError(f"invalid session {name!r}: use namespace/cluster/session")
    if selection.as_of_ms is not None:
        raise UsageError(f"invalid session {name!r}: omit the time, because sessions are compared at their end")
    return selection


async def _stored(request: Request, selection: Selection) -> StoredSummary:
    """Return the summary of a session: from the run table, or from its product, which is built if missing."""
    table = run_listing_of(request).table
    entry = await resolver_of(request).entry(selection)
    summary = (await table.load()).summaries.get(entry.ref.identity)
    details = (await table.details([entry.ref.identity])).get(entry.ref.identity) if summary else None
    if summary and details:
        return StoredSummary(summary=summary, details=details)
    view = await resolver_of(request).view(selection, _TIMEOUT_S)
    if view.products is None:
        raise UsageError("omit the time, because sessions are compared at their end")
    product = await view.products.wait(NAME, _TIMEOUT_S)
    stored = decode_summary(await asyncio.to_thread((await product.file(FILE)).read_bytes))
    if stored is None or stored.summary.identity != entry.ref.identity:
        raise product.damaged("the summary cannot be read")
    return stored
