"""The server's address space: home, sessions by address, sessions by KubeRay's cookies, health and metrics."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayhistory import __version__, web
from rayhistory.errors import NotIndexedYet, RayHistoryError
from rayhistory.index.builder import IndexBuilder
from rayhistory.index.overlay import index_store
from rayhistory.index.query import connection
from rayhistory.layout import Layout
from rayhistory.server import frontend, kuberay, openapi
from rayhistory.server.answers import json_answer, own_error, text_answer
from rayhistory.server.catalogue import Catalogue
from rayhistory.server.home import PAGE_SIZE, Home
from rayhistory.server.indexer import Indexer
from rayhistory.server.kept import KeptAnswers
from rayhistory.server.resolve import Resolver, Selection, parse_session_path, selection_from_cookies
from rayhistory.server.routes import SESSION_ROUTES
from rayhistory.server.routing import answer_to, get_plain, own_answer_to, resolver_of, selection_of, status_of
from rayhistory.settings import Settings
from rayhistory.storage import Store, open_store

_PAGE_PATIENCE = 3.0
"""How long a page waits for a fold before it shows the progress instead."""

_TITLES = {400: "This address cannot be read", 404: "No such session", 503: "Not now"}


def create_app(settings: Settings, store: Store | None = None) -> Starlette:
    store = store or open_store(settings)
    layout = Layout(settings.storage_root_dir)
    catalogue = Catalogue(store, layout, settings.vanished_after)
    frontend_dir = frontend.find_frontend(settings.dashboard_dir)
    session_router = Router([*SESSION_ROUTES, *_frontend_routes(frontend_dir)], default=_not_here)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        builder = IndexBuilder(settings, store, layout)
        app.state.resolver = Resolver(catalogue, builder, store, layout)
        app.state.answers = KeptAnswers()
        app.state.home = Home(catalogue, index_store(store, settings), layout)
        await asyncio.to_thread(connection)  # the database takes a moment to begin: not at the first visit
        ahead = asyncio.create_task(Indexer(catalogue, builder).run()) if settings.index_ahead else None
        yield
        if ahead:
            ahead.cancel()
        await builder.close()
        await store.close()

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
            Middleware(TrustedHostMiddleware, allowed_hosts=list(settings.allowed_hosts) or ["*"]),
            *_cors(settings.cors_origins),
            Middleware(ReadOnly),
        ],
        lifespan=lifespan,
    )
    app.state.store_url = store.url
    app.state.registry = CollectorRegistry()
    app.state.requests = Counter("rayhistory_requests", "Requests answered", ["status"], registry=app.state.registry)
    app.state.seconds = Histogram("rayhistory_request_seconds", "Time to answer", registry=app.state.registry)
    return app


def _cors(origins: tuple[str, ...]) -> list[Middleware]:
    """Pages of these origins may read; those of others may not, as it is without."""
    if not origins:
        return []
    exposed = ["Content-Range", "ETag", "Retry-After"]
    return [Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "HEAD"], expose_headers=exposed)]


def _frontend_routes(directory: Path | None) -> list[Route]:
    async def document(request: Request) -> Response:
        """The page of a session: the session is there, it is indexed, and then Ray's frontend takes over."""
        try:
            entry = await resolver_of(request).entry(selection_of(request))
            if directory is None:
                return message_page(404, frontend.ABSENT, "The data is there, the pages are not.",
                                    frontend.ADVICE)  # fmt: skip
            moment = selection_of(request).as_of_ms
            canonical = entry.ref.url if moment is None else f"{entry.ref.url[:-1]}@{moment}/"
            if not selection_of(request).by_cookie and request.scope["rayhistory.full_path"] != canonical:
                return RedirectResponse(canonical, 307)
            await resolver_of(request).view(selection_of(request), _PAGE_PATIENCE)
        except NotIndexedYet as progress:
            return progress_page(entry.ref, progress)
        except RayHistoryError as error:
            return error_page(error)
        return frontend.index_page(directory)

    async def file(request: Request) -> Response:
        return frontend.file_answer(directory, request.url.path.removeprefix(request.scope["root_path"]).lstrip("/"))

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
        except RayHistoryError as error:
            wants_page = scope["type"] == "http" and b"text/html" in dict(scope["headers"]).get(b"accept", b"")
            answer = error_page(error) if wants_page else _failed(full, error)
            await answer(scope, receive, send)
            return
        if rest is None:
            await RedirectResponse(full + "/", 307)(scope, receive, send)
            return
        await self._routes(_below(scope, selection, full, rest), receive, send)


class ByCookies:
    """Everything else, for the session that KubeRay's cookies name.

    Ray's dashboard proxy answers a 404 with its own, local cluster: so what is not there is gone (410) instead.
    """

    def __init__(self, routes: ASGIApp) -> None:
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, cookies = scope["path"], HTTPConnection(scope).cookies
        try:
            selection = selection_from_cookies(cookies)
        except RayHistoryError as error:
            await _failed(path, error)(scope, receive, send)
            return
        if selection is None:
            wants_home = path == "/" and scope["type"] == "http"
            answer = await home_page(Request(scope)) if wants_home else _nothing_chosen(path)
            await answer(scope, receive, send)
            return
        may_be_404 = path in ("/", "/favicon.ico", "/api/v0/platform_events") or path.startswith("/static/")
        renewed = kuberay.cookie_headers(cookies)

        async def answer_by_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = 410 if message["status"] == 404 and not may_be_404 else message["status"]
                message = {**message, "status": status, "headers": [*message["headers"], *renewed]}
            await send(message)

        await self._routes(_below(scope, selection, path, path.lstrip("/")), receive, answer_by_cookie)


def _nothing_chosen(path: str) -> Response:
    if path == "/favicon.ico" or path.startswith("/static/"):
        return text_answer("404: Not Found", 404)
    hint = "choose a session with /enter_cluster/{namespace}/{kind}/{name}, or use its address /s/…"
    if _is_ours(path):
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
    answer = own_error(f"there is no {path}", 404) if _is_ours(path) else text_answer("404: Not Found", 404)
    await answer(scope, receive, send)


def _is_ours(path: str) -> bool:
    """Whether this is our own API, with or without the address of a session."""
    return openapi.PREFIX in path


def _failed(path: str, error: RayHistoryError) -> Response:
    return own_answer_to(error) if _is_ours(path) else answer_to(error)


class ReadOnly:
    """Nothing can be changed here: other verbs are refused before any route sees them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in {"GET", "HEAD"}:
            text = f"{scope['method']} is not possible here: this is history, and can only be read"
            answer = own_error(text, 405) if _is_ours(scope["path"]) else text_answer(text, 405)
            answer.headers["Allow"] = "GET, HEAD"
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)


class Measure:
    """Counts answers and their time."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope["app"].state
        began = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                state.requests.labels(message["status"]).inc()
                state.seconds.observe(time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, counted)


async def home_page(request: Request) -> Response:
    home: Home = request.app.state.home
    try:
        rows, filters, total, number = await home.page(request.query_params)
    except RayHistoryError as error:
        return error_page(error)
    following = str(number + 1) if number * PAGE_SIZE < total else None
    before = str(number - 1) if number > 1 else None
    text = web.render_home(
        rows,
        filters=filters,
        total=total,
        next_page=filters.with_page(following).url(web.HOME_PATH) if following else None,
        previous_page=filters.with_page(before).url(web.HOME_PATH) if before else None,
        notice=None,
        store=request.app.state.store_url,
        now_ms=int(time.time() * 1000),
        version=__version__,
    )
    return _page(text, 200)


async def home_json(request: Request) -> Response:
    home: Home = request.app.state.home
    try:
        rows, _, total, _ = await home.page(request.query_params)
    except RayHistoryError as error:
        return own_answer_to(error)
    return json_answer({"sessions": rows, "total": total})


async def openapi_document(request: Request) -> Response:
    own = [route.path for route in request.app.routes if isinstance(route, Route)]
    session = [route.path for route in SESSION_ROUTES if isinstance(route, Route)]
    return json_answer(openapi.document(own, session))


def message_page(status: int, title: str, message: str, hint: str | None) -> Response:
    text = web.render_message(status=status, title=title, message=message, hint=hint, version=__version__)
    return _page(text, status)


def error_page(error: RayHistoryError) -> Response:
    status = status_of(error)
    hint = "Go back to the list of sessions and choose one." if status in (400, 404) else None
    return message_page(status, _TITLES.get(status, "This session cannot be shown"), str(error), hint)


def progress_page(session: Any, progress: NotIndexedYet) -> Response:
    text = web.render_progress(
        session=session,
        title="This session is being indexed",
        detail=str(progress),
        percent=int(progress.progress * 100) if progress.progress else None,
        refresh_seconds=1,
        version=__version__,
    )
    return _page(text, 200)


def _page(text: str, status: int) -> Response:
    headers = {
        "Content-Security-Policy": web.CONTENT_SECURITY_POLICY,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Cache-Control": "no-store",
    }
    return Response(text, status, headers, "text/html")


async def _alive(request: Request) -> Response:
    return text_answer("ok")


async def _ready(request: Request) -> Response:
    """Ready when the store answers."""
    try:
        await resolver_of(request).catalogue.entries()
    except RayHistoryError as error:
        return text_answer(str(error), 503)
    return text_answer("ok")


async def _metrics(request: Request) -> Response:
    return Response(generate_latest(request.app.state.registry), media_type="text/plain; version=0.0.4")
