"""Start the search that a request asks for, in one session or in all that its visitor may see."""

from collections.abc import Mapping

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request

from rayhistory.errors import UsageError
from rayhistory.search.scanner import Scan, Scanner
from rayhistory.search.search_query import SearchQuery, parse_search
from rayhistory.server.history_api.visible_sessions import matching_sessions
from rayhistory.server.http.admission import admission_of, caller_of
from rayhistory.server.http.view_routes import resolver_of, selection_of
from rayhistory.server.logs.search_scope import find_scope
from rayhistory.server.logs.session_search import SessionSearch
from rayhistory.server.logs.sessions_search import SessionsSearch, decode_sessions_cursor
from rayhistory.server.view import SessionView
from rayhistory.sessions import SessionRef

SESSION_FILTERS = ("namespace", "cluster", "owner", "since")
_ONE_SESSION = ("job", "task", "actor")


def as_of_selection(request: Request, query: SearchQuery) -> SearchQuery:
    """As of a point in time, there are no later lines."""
    as_of = selection_of(request).as_of_ms
    return query if as_of is None else msgspec.structs.replace(query, to_ms=min(as_of + 1, query.to_ms or as_of + 1))


async def start_session_search(
    request: Request, view: SessionView, query: SearchQuery, time_budget_s: float | None
) -> SessionSearch:
    scanner: Scanner = request.app.state.scanner
    scan = Scan(
        scanner, resolver_of(request).search_logs(view.ref), query, scope=await find_scope(view, query),
        visitor=caller_of(request), time_budget_s=time_budget_s,
    )  # fmt: skip
    return SessionSearch(view, scan)


async def start_sessions_search(
    request: Request, params: Mapping[str, str], time_budget_s: float | None
) -> SessionsSearch:
    if one_session := [name for name in _ONE_SESSION if params.get(name)]:
        raise UsageError(f"{', '.join(one_session)}: search one session, at /s/{{namespace}}/{{cluster}}/{{session}}/")
    cursor = decode_sessions_cursor(params["cursor"]) if params.get("cursor") else None
    query = parse_search({name: value for name, value in params.items() if name != "cursor"}, SESSION_FILTERS)
    query.pattern()  # before sessions are listed
    filters = {name: params[name] for name in SESSION_FILTERS if name in params and name != "cluster"}
    entries = await matching_sessions(request, QueryParams(filters))
    if cluster := params.get("cluster"):
        entries = [entry for entry in entries if entry.ref.cluster == cluster]
    scanner: Scanner = request.app.state.scanner

    def start_scan(ref: SessionRef, query: SearchQuery, time_budget_s: float | None) -> Scan:
        logs = resolver_of(request).search_logs(ref)
        return Scan(scanner, logs, query, visitor=caller_of(request), time_budget_s=time_budget_s)

    async def is_visible(ref: SessionRef) -> bool:
        return bool(await admission_of(request).visible_namespaces(request, {ref.namespace}))

    return SessionsSearch(
        resolver_of(request), entries, query, start_scan, is_visible, cursor=cursor, time_budget_s=time_budget_s
    )
