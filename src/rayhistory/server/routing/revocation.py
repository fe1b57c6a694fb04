"""End a long response, such as a log stream or a WebSocket, when its visitor loses access."""

import asyncio

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayhistory.errors import AccessDenied, AccessError
from rayhistory.server.http.admission import admission_of
from rayhistory.server.routing.auth_middleware import access_error_response

_RECHECK_INTERVAL_S = 10.0
_POLICY_VIOLATION = 1008


async def serve_while_admitted(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Check the visitor's token and permissions every few seconds.

    After a revocation the connection is dropped, because a regular end would look like the end of the data.
    """
    started = False

    async def send_noting_start(message: Message) -> None:
        nonlocal started
        started = True
        await send(message)

    revoked = asyncio.timeout(None)
    watch = asyncio.create_task(_expire_when_revoked(HTTPConnection(scope), revoked))
    try:
        async with revoked:
            await app(scope, receive, send_noting_start)
    except TimeoutError:
        if not revoked.expired():
            raise
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": "access was revoked"})
        elif not started:
            await access_error_response(HTTPConnection(scope), AccessDenied("access was revoked"))(scope, receive, send)
    finally:
        watch.cancel()


async def _expire_when_revoked(connection: HTTPConnection, response: asyncio.Timeout) -> None:
    while True:
        await asyncio.sleep(_RECHECK_INTERVAL_S)
        if not await _may_still_see(connection):
            response.reschedule(asyncio.get_running_loop().time())
            return


async def _may_still_see(connection: HTTPConnection) -> bool:
    access, namespace = admission_of(connection).access, connection.scope["rayhistory.selection"].namespace
    try:
        return await access.may_see(await access.visitor(connection), namespace)
    except AccessError:
        return False
