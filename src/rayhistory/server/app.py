"""The ASGI application of the history server: components, routes and middleware, wired together."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Mount, Router
from starlette.staticfiles import StaticFiles

from rayhistory import web
from rayhistory.access import open_access
from rayhistory.access.hosts import HostMiddleware
from rayhistory.access.security_headers import SecurityHeadersMiddleware
from rayhistory.access.trusted_proxies import TrustedProxies
from rayhistory.errors import ERROR_HEADER
from rayhistory.index.overlay import index_store
from rayhistory.index.query.database import connection
from rayhistory.index.service.ahead_indexer import AheadIndexer
from rayhistory.index.service.builder import IndexBuilder
from rayhistory.kubernetes_api import open_kubernetes
from rayhistory.live.head_proxy import HeadProxy
from rayhistory.live.kubernetes_watch import ClusterDiscovery
from rayhistory.networks import Networks
from rayhistory.notify.notifier import Notifier
from rayhistory.notify.notify_rules import NotifyRules, read_rules
from rayhistory.runs.run_maintenance import RunMaintenance
from rayhistory.runs.run_table import RunTable
from rayhistory.search import Scanner
from rayhistory.search.search_index import ShardCache
from rayhistory.server import kuberay, mcp_endpoint
from rayhistory.server.api_routes import SESSION_ROUTES
from rayhistory.server.frontend import Frontends
from rayhistory.server.history_api import cluster_list, session_list_routes
from rayhistory.server.history_api.session_listing import SessionListing
from rayhistory.server.history_api.sql_queries import SqlService
from rayhistory.server.http.admission import Admission
from rayhistory.server.http.middleware import ErrorMiddleware, MetricsMiddleware, ReadOnlyMiddleware, RequestMetrics
from rayhistory.server.http.response_cache import ResponseCache
from rayhistory.server.live_sessions import LiveSessions
from rayhistory.server.openapi import document
from rayhistory.server.pages import (
    compare_page,
    diagnosis_page,
    fleet_page,
    gaps_page,
    home_page,
    log_page,
    runs_page,
    search_page,
)
from rayhistory.server.product_backlog import ProductBacklog
from rayhistory.server.products import PRODUCTS
from rayhistory.server.resolve import SessionResolver
from rayhistory.server.routing import health
from rayhistory.server.routing.auth_middleware import AuthMiddleware
from rayhistory.server.routing.frontend_routes import frontend_routes
from rayhistory.server.routing.live_router import LiveRouter
from rayhistory.server.routing.session_router import SessionCookieRouter, SessionPathRouter, not_found
from rayhistory.server.row_files import RowFiles
from rayhistory.server.runs_api import compare_routes, fleet_routes, run_routes
from rayhistory.server.runs_api.run_listing import RunListing
from rayhistory.server.search_api import all_sessions_search
from rayhistory.sessions import Layout
from rayhistory.sessions.catalog import SessionCatalog
from rayhistory.settings import Settings
from rayhistory.storage import Store, open_store


def create_app(settings: Settings, store: Store | None = None) -> Starlette:
    tempfile.gettempdir()  # Python chooses it at the first call, and passes over a directory that is full by then
    rules = read_rules(settings.notify_rules) if settings.notify_rules else NotifyRules()
    store = store or open_store(settings)
    layout = Layout(settings.storage_root_dir)
    kubernetes = open_kubernetes(settings)
    access = open_access(settings, kubernetes)
    discovery = (
        ClusterDiscovery(kubernetes, settings.kubernetes_namespaces) if kubernetes and settings.discover else None
    )
    catalog = SessionCatalog.from_settings(store, layout, settings, *([discovery.has_cluster] if discovery else []))
    live = LiveSessions(
        catalog, discovery, kubernetes, HeadProxy() if settings.live else None,
        registered_networks=Networks(settings.live_networks, "--live-networks"),
        through_api=settings.use_kubernetes_proxy, pass_own_tokens=settings.use_auth_token_mode,
    )  # fmt: skip
    frontends = Frontends(settings.dashboard_dir)
    request_metrics = RequestMetrics()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if discovery:
            discovery.start()
        try:
            async with _running(app, settings, store, layout, catalog=catalog, rules=rules):
                yield
        finally:
            await store.close()
            await live.close()
            if kubernetes:
                await kubernetes.close()

    app = Starlette(
        routes=_routes(LiveRouter(_session_router(frontends), SESSION_ROUTES, frontends)),
        middleware=_middleware(settings, request_metrics),
        lifespan=lifespan,
    )
    app.router.default = not_found  # a Mount does not match a path with a line break
    app.router.redirect_slashes = False  # Starlette builds the Location from the Host header
    app.state.admission = Admission(access, TrustedProxies(settings.trusted_proxies), rate_limit=settings.rate_limit)
    app.state.live = live
    app.state.ready = True
    app.state.store_url = store.url
    app.state.frontends = frontends
    app.state.sql = SqlService(settings)
    app.state.row_files = RowFiles()
    app.state.grafana_url = settings.grafana_url
    app.state.request_metrics = request_metrics
    app.state.names_are_public = settings.auth == "none"
    return app


@asynccontextmanager
async def _running(
    app: Starlette, settings: Settings, store: Store, layout: Layout, *, catalog: SessionCatalog, rules: NotifyRules
) -> AsyncIterator[None]:
    """Create the components that need an event loop, and run background tasks."""
    builder = IndexBuilder(settings, store, layout, products=PRODUCTS)
    if settings.index_ahead:
        builder.warm_up()
    app.state.resolver = SessionResolver(catalog, builder, store, layout)
    app.state.response_cache = ResponseCache()
    app.state.scanner = Scanner()
    app.state.shard_cache = ShardCache()
    app.state.session_listing = SessionListing(catalog, index_store(store, settings), layout, builder.products)
    await asyncio.to_thread(connection)  # start the database now, not in the first request
    app.state.runs = RunListing(index_store(store, settings), layout, settings)
    notifier = _notifier(rules, app.state.runs.table, settings, app.state.request_metrics)
    tasks = _background_tasks(settings, catalog, builder, app.state.runs, notifier)
    try:
        yield
    finally:  # also after an error in the `async with` of a command
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        app.state.scanner.close()
        await builder.close()


def _routes(session: LiveRouter) -> list[BaseRoute]:
    return [
        *health.ROUTES,
        *home_page.ROUTES,
        *session_list_routes.ROUTES,
        *all_sessions_search.ROUTES,
        *search_page.ROUTES,
        *compare_routes.ROUTES,
        *fleet_routes.ROUTES,
        *run_routes.ROUTES,
        *runs_page.ROUTES,
        *compare_page.ROUTES,
        *fleet_page.ROUTES,
        *cluster_list.ROUTES,
        *document.ROUTES,
        *kuberay.ROUTES,
        *mcp_endpoint.ROUTES,
        Mount("/assets", StaticFiles(directory=web.STATIC_DIR)),
        Mount("/s", SessionPathRouter(session)),
        Mount("/", SessionCookieRouter(session)),
    ]


def _middleware(settings: Settings, request_metrics: RequestMetrics) -> list[Middleware]:
    return [
        Middleware(MetricsMiddleware, metrics=request_metrics),
        Middleware(SecurityHeadersMiddleware, private=settings.auth != "none", frame_origins=_frame_origins(settings)),
        Middleware(ErrorMiddleware),
        Middleware(HostMiddleware, allowed_hosts=settings.allowed_hosts, origins=settings.cors_origins),
        *_cors(settings.cors_origins),
        Middleware(ReadOnlyMiddleware),
        Middleware(AuthMiddleware),
    ]


def _session_router(frontends: Frontends) -> Router:
    routes = [
        *SESSION_ROUTES,
        *diagnosis_page.ROUTES,
        *gaps_page.ROUTES,
        *log_page.ROUTES,
        *search_page.SESSION_ROUTES,
        *frontend_routes(frontends),
    ]
    # The router below a session does not know the session's path, so its redirects would lead out of the session.
    return Router(routes, redirect_slashes=False, default=not_found)


def _notifier(rules: NotifyRules, table: RunTable, settings: Settings, metrics: RequestMetrics) -> Notifier | None:
    def count(outcome: str) -> None:
        metrics.notifications.labels(outcome).inc()

    return Notifier(rules, table, settings.run_key, count) if rules.rule else None


def _background_tasks(
    settings: Settings,
    catalog: SessionCatalog,
    builder: IndexBuilder,
    runs: RunListing,
    notifier: Notifier | None,
) -> list[asyncio.Task[None]]:
    if not settings.index_ahead:
        return []
    maintenance = RunMaintenance(runs.table, catalog, builder.products, keep_removed=settings.keep_runs)
    backlog = ProductBacklog(runs.table, catalog, builder, maintenance)
    work = [AheadIndexer(catalog, builder, on_ended=backlog.add).run(), backlog.run(), maintenance.run()]
    if notifier:
        work.append(notifier.run())
    return [asyncio.create_task(each) for each in work]


def _frame_origins(settings: Settings) -> tuple[str, ...]:
    """Return the origins whose pages Ray's frontend may show in an iframe: that of Grafana, if it is configured."""
    grafana = urlsplit(settings.grafana_url)
    return (f"{grafana.scheme}://{grafana.netloc}",) if grafana.netloc else ()


def _cors(origins: tuple[str, ...]) -> list[Middleware]:
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "HEAD"],
            allow_headers=["Authorization", "If-None-Match", "Range", "X-Ray-Authorization"],
            expose_headers=["Content-Range", "ETag", "Retry-After", ERROR_HEADER],
        )
    ]
