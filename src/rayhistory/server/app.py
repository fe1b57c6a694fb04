"""The server's address space: home, sessions by address, sessions by KubeRay's cookies, health and metrics."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote, urlsplit

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayhistory import __version__, web
from rayhistory.access import open_access
from rayhistory.access.headers import SecurityHeaders
from rayhistory.access.modes import Proxies
from rayhistory.access.origins import Hosts
from rayhistory.errors import AccessError, NotIndexedYet, RayHistoryError, UsageError
from rayhistory.index.builder import IndexBuilder
from rayhistory.index.overlay import index_store
from rayhistory.index.query import connection
from rayhistory.kubeapi import find_kubernetes
from rayhistory.layout import Layout
from rayhistory.live.discovery import Discovery
from rayhistory.live.proxy import LiveProxy
from rayhistory.server import frame, frontend, kuberay, openapi
from rayhistory.server.answers import json_answer, own_error, text_answer
from rayhistory.server.catalogue import Catalogue
from rayhistory.server.guard import Door, Guard, admit, guard_of, refusal
from rayhistory.server.home import Home, HomePage
from rayhistory.server.indexer import Indexer
from rayhistory.server.kept import KeptAnswers
from rayhistory.server.livesessions import ByLife, LiveSessions, live_of
from rayhistory.server.middleware import Measure, Mishaps, ReadOnly, is_ours
from rayhistory.server.pages import error_page, message_page, page_answer, progress_page
from rayhistory.server.resolve import Resolver, Selection, parse_session_path, selection_from_cookies
from rayhistory.server.routes import SESSION_ROUTES
from rayhistory.server.routing import answer_to, get_plain, own_answer_to, resolver_of, retry, selection_of
from rayhistory.server.throughray import never_from_elsewhere, through_ray
from rayhistory.settings import Settings
from rayhistory.storage import Store, open_store


def create_app(settings: Settings, store: Store | None = None) -> Starlette:
    store = store or open_store(settings)
    layout = Layout(settings.storage_root_dir)
    kubernetes = find_kubernetes(settings)
    access = open_access(settings, kubernetes)
    discovery = Discovery(kubernetes, settings.kubernetes_namespaces) if kubernetes and settings.discover else None
    catalogue = Catalogue(store, layout, settings.vanished_after, *([discovery.has] if discovery else []))
    live = LiveSessions(
        catalogue, discovery, kubernetes, LiveProxy() if settings.live else None,
        through_api=settings.use_kubernetes_proxy, pass_own_tokens=settings.use_auth_token_mode,
    )  # fmt: skip
    frontends = frontend.Frontends(settings.dashboard_dir)
    stored = Router([*SESSION_ROUTES, *frame.ROUTES, *_frontend_routes(frontends)], default=_not_here)
    session_router = ByLife(stored, SESSION_ROUTES, frontends)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        builder = IndexBuilder(settings, store, layout)
        app.state.resolver = Resolver(catalogue, builder, store, layout)
        app.state.answers = KeptAnswers()
        app.state.home = Home(catalogue, index_store(store, settings), layout)
        await asyncio.to_thread(connection)  # the database takes a moment to begin: not at the first visit
        if discovery:
            discovery.start()
        ahead = asyncio.create_task(Indexer(catalogue, builder).run()) if settings.index_ahead else None
        yield
        if ahead:
            ahead.cancel()
        await builder.close()
        await store.close()
        await live.close()
        if kubernetes:
            await kubernetes.close()

    app = Starlette(
        routes=[
            Route("/livez", _alive),
            Route("/readyz", _ready),
            Route("/readz", _ready),
            Route("/metrics", _metrics),
            Route("/home", home_page),
            Route("/select_cluster", home_page),
            Route("/home.json", home_json),
            Route(f"{openapi.PREFIX}sessions", home_json),
            Route(f"{openapi.PREFIX}clusters", clusters_json),
            Route(openapi.DOCUMENT, openapi_document),
            Route("/clusters", kuberay.clusters),
            Route("/clusters/", kuberay.clusters),
            Route("/enter_cluster/{choice:path}", kuberay.enter_cluster),
            Mount("/assets", StaticFiles(directory=web.STATIC_DIR)),
            Mount("/s", BySessionPath(session_router)),
            Mount("/", ByCookies(session_router)),
        ],
        middleware=[
            Middleware(Measure),
            Middleware(SecurityHeaders, private=settings.auth != "none", frames=_frames(settings)),
            Middleware(Mishaps),
            Middleware(Hosts, names=settings.allowed_hosts, origins=settings.cors_origins),
            *_cors(settings.cors_origins),
            Middleware(ReadOnly),
            Middleware(Door),
        ],
        lifespan=lifespan,
    )
    app.state.guard = Guard(access, Proxies(settings.trusted_proxies), expensive_calls=settings.expensive_calls)
    app.state.live = live
    app.state.store_url = store.url
    app.state.frontends = frontends
    app.state.grafana_url = settings.grafana_url
    app.state.registry = CollectorRegistry()
    app.state.requests = Counter("rayhistory_requests", "Requests answered", ["status"], registry=app.state.registry)
    app.state.seconds = Histogram("rayhistory_request_seconds", "Time to answer", registry=app.state.registry)
    return app


def _frames(settings: Settings) -> tuple[str, ...]:
    """Whose pages Ray's frontend shows inside of its own."""
    found = urlsplit(settings.grafana_url)
    return (f"{found.scheme}://{found.netloc}",) if found.netloc else ()


def _cors(origins: tuple[str, ...]) -> list[Middleware]:
    """Pages of these origins may read; those of others may not, as it is without."""
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "HEAD"],
            allow_headers=["Authorization", "If-None-Match", "Range", "X-Ray-Authorization"],
            expose_headers=["Content-Range", "ETag", "Retry-After"],
        )
    ]


def _frontend_routes(frontends: frontend.Frontends) -> list[Route]:
    async def document(request: Request) -> Response:
        """The page of a session: the session is there, it is indexed, and then Ray's frontend takes over."""
        try:
            entry = await resolver_of(request).entry(selection_of(request))
            wanted = request.query_params.get(frontend.PARAMETER)
            try:
                chosen = frontends.choose(None, wanted)
            except UsageError as error:
                return message_page(400, "This dashboard is not installed", str(error), frontend.MORE)
            if chosen is None:
                return message_page(404, frontend.ABSENT, "The data is there, the pages are not.",
                                    frontend.ADVICE)  # fmt: skip
            moment = selection_of(request).as_of_ms
            canonical = entry.ref.url if moment is None else f"{entry.ref.url[:-1]}@{moment}/"
            if not selection_of(request).by_cookie and request.scope["rayhistory.full_path"] != canonical:
                return RedirectResponse(canonical + _query(request.scope), 307)
            view = await resolver_of(request).view(selection_of(request), frame.PAGE_PATIENCE)
            if frame.is_wanted(request):
                return await frame.page(request, entry, view)
            chosen = frontends.choose(view.index.manifest.ray_version, wanted) or chosen
        except NotIndexedYet as progress:
            return progress_page(entry.ref, progress)
        except RayHistoryError as error:
            return error_page(error)
        return frontend.index_page(chosen, frame.VARY)

    async def file(request: Request) -> Response:
        return frontends.file_answer(request.scope["path"].lstrip("/"))

    return [
        get_plain("/", document, ("GET", "HEAD")),
        get_plain("/favicon.ico", file, ("GET", "HEAD")),
        get_plain("/static/{path:path}", file, ("GET", "HEAD")),
    ]


class BySessionPath:
    """`/s/…`: finds out which session is meant and hands the rest of the path to Ray's routes."""

    def __init__(self, routes: ASGIApp) -> None:
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        full = scope["path"]
        path = full.removeprefix("/s/")
        try:
            selection, rest = parse_session_path(path)
            await admit(scope, selection)
        except AccessError as error:
            await refusal(HTTPConnection(scope), error)(scope, receive, send)
            return
        except RayHistoryError as error:
            wants_page = scope["type"] == "http" and b"text/html" in dict(scope["headers"]).get(b"accept", b"")
            answer = error_page(error) if wants_page else _failed(full, error)
            await answer(scope, receive, send)
            return
        if rest is None:
            await RedirectResponse(f"{full}/{_query(scope)}", 307)(scope, receive, send)
            return
        rest = rest.lstrip("/")  # an address that ends with a slash, and a path that begins with one
        if through_ray(HTTPConnection(scope)):
            send = never_from_elsewhere("/" + rest, send)
        await self._routes(_below(scope, selection, full, rest), receive, send)


class ByCookies:
    """Everything else, for the session that KubeRay's cookies name."""

    def __init__(self, routes: ASGIApp) -> None:
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, cookies = scope["path"], HTTPConnection(scope).cookies
        if (below := path.lstrip("/")).startswith("s/") and scope["type"] == "http":  # //s/… by a script
            await RedirectResponse(f"/{quote(below)}{_query(scope)}", 307)(scope, receive, send)
            return
        try:
            selection = selection_from_cookies(cookies)
            if selection is not None:
                await admit(scope, selection)
        except AccessError as error:
            await refusal(HTTPConnection(scope), error)(scope, receive, send)
            return
        except RayHistoryError as error:
            await _failed(path, error)(scope, receive, send)
            return
        if selection is None:
            wants_home = path == "/" and scope["type"] == "http"
            answer = await home_page(Request(scope)) if wants_home else _nothing_chosen(path)
            await answer(scope, receive, send)
            return
        renewed = kuberay.cookie_headers(cookies)

        async def answer_by_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *renewed]}
            await send(message)

        await self._routes(_below(scope, selection, path, below), receive, never_from_elsewhere(path, answer_by_cookie))


def _query(scope: Scope) -> str:
    """As it was asked, for another address."""
    query = scope["query_string"].decode("latin-1")
    return f"?{query}" if query else ""


def _nothing_chosen(path: str) -> Response:
    if path == "/favicon.ico" or path.startswith("/static/"):
        return text_answer("404: Not Found", 404)
    hint = "choose a session with /enter_cluster/{namespace}/{kind}/{name}, or use its address /s/…"
    if is_ours(path):
        return own_error(f"no session is chosen: {hint}", 400)
    return json_answer(f"Cluster Cookie not found: {hint}", 400)


def _below(scope: Scope, selection: Selection, full: str, rest: str) -> Scope:
    return {
        **scope,
        "path": "/" + rest,
        "raw_path": ("/" + rest).encode(),
        "root_path": "",
        "rayhistory.selection": selection,
        "rayhistory.full_path": full,
    }


async def _not_here(scope: Scope, receive: Receive, send: Send) -> None:
    path = scope["path"]
    answer = own_error(f"there is no {path}", 404) if is_ours(path) else text_answer("404: Not Found", 404)
    await answer(scope, receive, send)


def _failed(path: str, error: RayHistoryError) -> Response:
    return own_answer_to(error) if is_ours(path) else answer_to(error)


async def home_page(request: Request) -> Response:
    try:
        page = await _home(request)
    except RayHistoryError as error:
        return error_page(error)
    text = web.render_home(
        page.sessions,
        filters=page.filters,
        total=page.total,
        next_page=page.next.url(web.HOME_PATH) if page.next else None,
        previous_page=page.previous.url(web.HOME_PATH) if page.previous else None,
        dashboards=page.dashboards,
        notice=None,
        store=request.app.state.store_url,
        now_ms=int(time.time() * 1000),
        version=__version__,
    )
    return page_answer(text)


async def home_json(request: Request) -> Response:
    try:
        page = await _home(request)
    except RayHistoryError as error:
        return own_answer_to(error)
    return json_answer(
        openapi.Sessions(
            sessions=page.sessions,
            total=page.total,
            next=page.next.url(request.url.path) if page.next else None,
            namespaces=page.filters.namespaces,
            dashboards=page.dashboards,
        )
    )


async def clusters_json(request: Request) -> Response:
    live = live_of(request)
    try:
        entries = await guard_of(request).visible(request, await resolver_of(request).catalogue.entries())
        found = await live.clusters(request, entries)
    except RayHistoryError as error:
        return own_answer_to(error)
    return json_answer(openapi.Clusters(found, live.discovery.problem if live.discovery else None))


async def _home(request: Request) -> HomePage:
    home: Home = request.app.state.home
    entries = await guard_of(request).visible(request, await resolver_of(request).catalogue.entries())
    entries = [*await live_of(request).unrecorded(request, entries), *entries]
    return await home.page(entries, request.query_params, request.app.state.frontends)


async def openapi_document(request: Request) -> Response:
    own = [route.path for route in request.app.routes if isinstance(route, Route)]
    session = [route.path for route in SESSION_ROUTES if isinstance(route, Route)]
    return json_answer(openapi.document(own, session))


async def _alive(request: Request) -> Response:
    return text_answer("ok")


async def _ready(request: Request) -> Response:
    """Ready when the store answers."""
    try:
        await resolver_of(request).catalogue.entries()
    except RayHistoryError as error:
        return text_answer(str(error), 503, retry(503))
    return text_answer("ok")


async def _metrics(request: Request) -> Response:
    return Response(generate_latest(request.app.state.registry), media_type="text/plain; version=0.0.4")
