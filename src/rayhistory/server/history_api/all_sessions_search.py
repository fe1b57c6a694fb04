"""Search in the log files of all sessions that the visitor may see, the newest first."""

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayhistory.errors import RayHistoryError, UsageError
from rayhistory.search.scanner import Scan, Scanner
from rayhistory.search.search_query import SearchQuery, parse_search
from rayhistory.server.history_api.hit_response import TIME_BUDGET_S, hit_response, wants_stream
from rayhistory.server.history_api.visible_sessions import matching_sessions
from rayhistory.server.http.admission import admission_of, caller_of
from rayhistory.server.http.error_responses import api_error_response
from rayhistory.server.http.paths import HISTORY_API
from rayhistory.server.http.view_routes import resolver_of
from rayhistory.server.logs.sessions_search import SessionsSearch, decode_sessions_cursor
from rayhistory.sessions import SessionRef

SESSION_FILTERS = ("namespace", "cluster", "owner", "since")
_ONE_SESSION = ("job", "task", "actor")


async def search(request: Request) -> Response:
    try:
        budget = None if wants_stream(request) else TIME_BUDGET_S
        return await hit_response(request, await start_sessions_search(request, budget))
    except RayHistoryError as error:
        return api_error_response(error)


async def start_sessions_search(request: Request, time_budget_s: float | None) -> SessionsSearch:
    params = request.query_params
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


ROUTES = [Route(f"{HISTORY_API}search", search)]
