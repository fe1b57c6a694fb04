"""KubeRay's own routes: list the clusters, and select a session with cookies."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayhistory.errors import AccessError, RayHistoryError, SessionNotFound, UsageError
from rayhistory.live.kubernetes_resources import RayClusterResource
from rayhistory.server.http.admission import admission_of, admit
from rayhistory.server.http.error_responses import text_error_response
from rayhistory.server.http.responses import json_response
from rayhistory.server.http.view_routes import resolver_of
from rayhistory.server.live_sessions import live_of
from rayhistory.server.routing.auth_middleware import access_error_response
from rayhistory.sessions import SessionRef
from rayhistory.sessions.catalog import RUNNING, CatalogEntry
from rayhistory.sessions.ref import is_safe_component
from rayhistory.sessions.selection import COOKIES, LATEST, LIVE, OWNER_KINDS, Selection, validated_selection

_COOKIE_MAX_AGE_S = 600


def session_info(entry: CatalogEntry) -> dict[str, Any]:
    """Describe a stored session as KubeRay does."""
    ref = entry.ref
    seconds = (entry.started_ms or 0) // 1000
    info: dict[str, Any] = {
        "name": ref.cluster,
        "namespace": ref.namespace,
        "sessionName": ref.session,
        "createTime": datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "createTimeStamp": seconds,
    }
    if ref.owner_kind:
        info |= {"ownerKind": ref.owner_kind, "ownerName": ref.owner_name}
    return info


def live_cluster_info(cluster: RayClusterResource) -> dict[str, Any]:
    """Describe a live cluster as KubeRay does."""
    seconds = (cluster.created_ms or 0) // 1000
    info: dict[str, Any] = {
        "name": cluster.name,
        "namespace": cluster.namespace,
        "sessionName": LIVE,
        "createTime": time.strftime("%Y-%m-%d %H:%M:%S +0000 UTC", time.gmtime(seconds)),
        "createTimeStamp": seconds,
    }
    if cluster.owner_kind:
        info |= {"ownerKind": cluster.owner_kind, "ownerName": cluster.owner_name}
    return info


async def clusters(request: Request) -> Response:
    catalog = resolver_of(request).catalog
    try:
        entries = await admission_of(request).filter_visible(request, await catalog.entries())
        discovered = await live_of(request).discovered(request)
    except RayHistoryError as error:
        return text_error_response(error)
    in_kubernetes = {(cluster.namespace, cluster.name) for cluster in discovered}
    live = [live_cluster_info(cluster) for cluster in discovered] + [
        {**session_info(entry), "sessionName": LIVE}
        for entry in entries
        if catalog.state(entry) == RUNNING and (entry.ref.namespace, entry.ref.cluster) not in in_kubernetes
    ]
    stored = sorted(entries, key=lambda entry: -(entry.started_ms or 0))
    return json_response([*live, *(session_info(entry) for entry in stored)])


async def enter_cluster(request: Request) -> Response:
    """Serve `/{namespace}/{kind}/{name}[/{session}]`, and the older `/{namespace}/{name}[/{session}]`."""
    namespace, *rest = request.path_params["choice"].strip("/").split("/")
    kind = rest[0].lower() if rest and rest[0].lower() in ("raycluster", *OWNER_KINDS) else None
    if kind and len(rest) > 1:
        rest = rest[1:]
    else:
        kind = "raycluster"
    if not 1 <= len(rest) <= 2:
        return text_error_response(UsageError("use /enter_cluster/{namespace}/{kind}/{name}[/{session}]"))
    name, session = rest[0], rest[1] if len(rest) == 2 else LATEST
    try:
        selection = validated_selection(namespace, name, session, kind if kind in OWNER_KINDS else None)
        await admit(request.scope, selection)
        return await _select(request, selection)
    except AccessError as error:
        return access_error_response(request, error)
    except SessionNotFound as error:
        return text_error_response(error, f"cluster {namespace}/{kind}/{name} with session {session} not found")
    except RayHistoryError as error:
        return text_error_response(error)


async def _select(request: Request, selection: Selection) -> Response:
    """Set the cookies of a selection, after its session was indexed or the head of its live cluster was found."""
    live, resolver = live_of(request), resolver_of(request)
    if cluster := await live.live_session_ref(selection, request):
        return _selected_response(cluster, LIVE)
    try:
        entry = await resolver.entry(selection)
    except SessionNotFound:
        if selection.session != LATEST:
            raise
        cluster = await live.live_session_ref(msgspec.structs.replace(selection, session=LIVE), request)
        if cluster is None:
            raise
        return _selected_response(cluster, LIVE)
    await resolver.view(selection)
    is_live = selection.session == LIVE and (live.has_cluster(selection) or resolver.catalog.state(entry) == RUNNING)
    return _selected_response(entry.ref, LIVE if is_live else entry.ref.session)


def _selected_response(ref: SessionRef, session: str) -> Response:
    response = json_response({"name": ref.cluster, "namespace": ref.namespace, "result": "success", "session": session})
    values = (ref.cluster, ref.namespace, session, ref.owner_kind or "", ref.owner_name or "")
    response.raw_headers += cookie_headers(dict(zip(COOKIES, values, strict=True)))
    return response


def cookie_headers(cookies: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return headers that set the cookies of a selection for ten minutes. As in KubeRay, every response renews them."""
    return [
        (b"set-cookie", f"{name}={cookies[name]}; Path=/; Max-Age={_COOKIE_MAX_AGE_S}".encode())
        for name in COOKIES
        if name in cookies and (cookies[name] == "" or is_safe_component(cookies[name]))
    ]


ROUTES = [
    Route("/clusters", clusters),
    Route("/clusters/", clusters),
    Route("/enter_cluster/{choice:path}", enter_cluster),
]
