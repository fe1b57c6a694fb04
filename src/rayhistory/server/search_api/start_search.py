"""Start the search of a request, in one session or in all sessions that its visitor may see."""

import functools
from collections.abc import Mapping

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request

from rayhistory.errors import IndexDamaged, ProductNotBuilt, UsageError
from rayhistory.index.products.product_files import OpenProduct
from rayhistory.index.products.session_products import SessionProducts
from rayhistory.search.find_in_file import FileSearch, FileSearchResult, find_in_file
from rayhistory.search.scan_plan import LogFile
from rayhistory.search.scanner import Scan, Scanner
from rayhistory.search.search_index import SearchIndex, ShardCache, ShardFile
from rayhistory.search.search_product import NAME
from rayhistory.search.search_query import SearchQuery, decode_cursor, parse_search
from rayhistory.server.history_api.visible_sessions import matching_sessions
from rayhistory.server.http.admission import admission_of, caller_of
from rayhistory.server.http.view_routes import resolver_of, selection_of
from rayhistory.server.search_api.multi_session_search import MultiSessionCursor, MultiSessionSearch
from rayhistory.server.search_api.search_scope import find_scope
from rayhistory.server.search_api.session_search import SessionSearch
from rayhistory.server.view import SessionView
from rayhistory.sessions import SessionRef

SESSION_FILTERS = ("namespace", "cluster", "owner", "since")
_ONE_SESSION = ("job", "task", "actor", "counts")


def as_of_selection(request: Request, query: SearchQuery) -> SearchQuery:
    """Limit a search as of a point in time to lines that were written before it."""
    as_of = selection_of(request).as_of_ms
    return query if as_of is None else msgspec.structs.replace(query, to_ms=min(as_of + 1, query.to_ms or as_of + 1))


async def start_session_search(
    request: Request, view: SessionView, query: SearchQuery, time_budget_s: float | None
) -> SessionSearch:
    scanner: Scanner = request.app.state.scanner
    pattern = await query.compile(scanner.patterns, caller_of(request))
    product = await view.products.open(NAME) if view.products else None
    index = _unit_index(request, view.ref, product, view.products)
    scan = Scan(
        scanner, resolver_of(request).search_logs(view.ref), query, pattern=pattern,
        scope=await find_scope(view, query), visitor=caller_of(request), time_budget_s=time_budget_s, unit_index=index,
    )  # fmt: skip
    return SessionSearch(view, scan)


async def search_file(
    request: Request, view: SessionView, place: tuple[str, str], search: FileSearch, time_budget_s: float
) -> FileSearchResult:
    """Find a line in one file, given by node and path."""
    node, path = place
    scanner: Scanner = request.app.state.scanner
    logs = resolver_of(request).search_logs(view.ref)
    history = (await logs.histories(node)).get(path)
    if history is None:
        return FileSearchResult()
    product = await view.products.open(NAME) if view.products else None
    return await find_in_file(
        scanner, logs, LogFile(node, path, history.points, history.identity), search,
        visitor=caller_of(request), time_budget_s=time_budget_s, unit_index=_unit_index(request, view.ref, product),
    )  # fmt: skip


async def indexed_line_breaks(request: Request, view: SessionView, place: tuple[str, str]) -> dict[int, int]:
    """Return the number of line breaks of a file's whole units, by offset. Empty without a search index."""
    node, path = place
    history = (await resolver_of(request).search_logs(view.ref).histories(node)).get(path)
    product = await view.products.open(NAME) if view.products else None
    index = _unit_index(request, view.ref, product)
    if history is None or index is None:
        return {}
    try:
        return await index.file_line_breaks(LogFile(node, path, history.points, history.identity))
    except IndexDamaged as error:
        index.report_damage(str(error))
    except ProductNotBuilt:
        pass
    return {}


def _unit_index(
    request: Request, ref: SessionRef, product: OpenProduct | None, products: SessionProducts | None = None
) -> SearchIndex | None:
    if product is None:
        return None
    cache: ShardCache = request.app.state.shard_cache
    files = product.manifest.files.items()
    shards = [ShardFile(name, file.size, f"{ref.path}/{file.build}/{name}") for name, file in files]
    extend = functools.partial(products.extend, product) if products else None
    return SearchIndex(shards, product.read, cache, on_damage=product.damaged, extend=extend)


async def start_sessions_search(
    request: Request, params: Mapping[str, str], time_budget_s: float | None
) -> MultiSessionSearch:
    if one_session := [name for name in _ONE_SESSION if params.get(name)]:
        raise UsageError(
            f"{', '.join(one_session)} cannot be used in a search of all sessions: "
            "search one session, at /s/{namespace}/{cluster}/{session}/"
        )
    cursor = decode_cursor(params["cursor"], MultiSessionCursor) if params.get("cursor") else None
    query = parse_search({name: value for name, value in params.items() if name != "cursor"}, SESSION_FILTERS)
    scanner: Scanner = request.app.state.scanner
    pattern = await query.compile(scanner.patterns, caller_of(request))
    filters = {name: params[name] for name in SESSION_FILTERS if name in params and name != "cluster"}
    entries = await matching_sessions(request, QueryParams(filters))
    if cluster := params.get("cluster"):
        entries = [entry for entry in entries if entry.ref.cluster == cluster]

    async def start_scan(ref: SessionRef, query: SearchQuery, time_budget_s: float | None) -> Scan:
        resolver = resolver_of(request)
        product = await resolver.builder.products.stored(ref, NAME)
        return Scan(
            scanner, resolver.search_logs(ref), query, pattern=pattern, visitor=caller_of(request),
            time_budget_s=time_budget_s, unit_index=_unit_index(request, ref, product),
        )  # fmt: skip

    async def is_visible(ref: SessionRef) -> bool:
        return bool(await admission_of(request).visible_namespaces(request, {ref.namespace}))

    return MultiSessionSearch(
        resolver_of(request), entries, query, start_scan, is_visible, cursor=cursor, time_budget_s=time_budget_s
    )
