"""KubeRay's own routes: the list of clusters, and the choice of one by cookies."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rayhistory.errors import AccessError, RayHistoryError, SessionNotFound
from rayhistory.layout import SessionRef
from rayhistory.layout.session import is_safe_component
from rayhistory.server.answers import json_answer, text_answer
from rayhistory.server.catalogue import LATEST, LIVE, RUNNING, Catalogue, Entry
from rayhistory.server.guard import admit, guard_of, refusal
from rayhistory.server.livesessions import kuberay_info, live_of
from rayhistory.server.resolve import COOKIES, OWNER_KINDS, Selection, checked_selection
from rayhistory.server.routing import resolver_of, retry, status_of

_LIFETIME = 600


def cluster_info(entry: Entry) -> dict[str, Any]:
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


async def clusters(request: Request) -> Response:
    catalogue: Catalogue = resolver_of(request).catalogue
    try:
        entries = await guard_of(request).visible(request, await catalogue.entries())
        discovered = await live_of(request).discovered(request)
    except RayHistoryError as error:
        return text_answer(str(error), status_of(error), retry(status_of(error)))
    known = {(each.namespace, each.name) for each in discovered}
    live = [kuberay_info(each) for each in discovered] + [
        {**cluster_info(entry), "sessionName": LIVE}
        for entry in entries
        if catalogue.state(entry) == RUNNING and (entry.ref.namespace, entry.ref.cluster) not in known
    ]
    stored = sorted(entries, key=lambda entry: -(entry.started_ms or 0))
    return json_answer([*live, *(cluster_info(entry) for entry in stored)])


async def enter_cluster(request: Request) -> Response:
    """`/{namespace}/{kind}/{name}[/{session}]`, and the older `/{namespace}/{name}[/{session}]`."""
    namespace, *rest = request.path_params["choice"].strip("/").split("/")
    kind = rest[0].lower() if rest and rest[0].lower() in ("raycluster", *OWNER_KINDS) else None
    if kind and len(rest) > 1:
        rest = rest[1:]
    else:
        kind = "raycluster"
    if not 1 <= len(rest) <= 2:
        return text_answer("use /enter_cluster/{namespace}/{kind}/{name}[/{session}]", 400)
    name, session = rest[0], rest[1] if len(rest) == 2 else LATEST
    try:
        selection = checked_selection(namespace, name, session, kind if kind in OWNER_KINDS else None)
        await admit(request.scope, selection)
        return await _entered(request, selection)
    except AccessError as error:
        return refusal(request, error)
    except RayHistoryError as error:
        message = str(error)
        if status_of(error) == 404:
            message = f"cluster {namespace}/{kind}/{name} with session {session} not found"
        return text_answer(message, status_of(error), retry(status_of(error)))


async def _entered(request: Request, selection: Selection) -> Response:
    live, resolver = live_of(request), resolver_of(request)
    if head := await live.cluster_of(selection, request):
        return _chosen(head, LIVE)
    try:
        entry = await resolver.entry(selection)
    except SessionNotFound:
        now = msgspec.structs.replace(selection, session=LIVE)
        alive = await live.cluster_of(now, request) if selection.session == LATEST else None
        if alive is None:
            raise
        return _chosen(alive, LIVE)
    await resolver.view(selection)
    return _chosen(entry.ref, entry.ref.session)


def _chosen(ref: SessionRef, session: str) -> Response:
    answer = json_answer({"name": ref.cluster, "namespace": ref.namespace, "result": "success", "session": session})
    values = (ref.cluster, ref.namespace, session, ref.owner_kind or "", ref.owner_name or "")
    answer.raw_headers += cookie_headers(dict(zip(COOKIES, values, strict=True)))
    return answer


def cookie_headers(cookies: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """The choice, for ten minutes from now; every answer renews it, as with KubeRay."""
    return [
        (b"set-cookie", f"{name}={cookies[name]}; Path=/; Max-Age={_LIFETIME}".encode())
        for name in COOKIES
        if name in cookies and (cookies[name] == "" or is_safe_component(cookies[name]))
    ]
