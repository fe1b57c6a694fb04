"""`/mcp`: the Model Context Protocol (MCP) over HTTP, without MCP sessions. It accepts bearer tokens, never cookies."""

import httpx
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayhistory.api.async_history import AsyncHistory
from rayhistory.api.in_process import InProcessTransport
from rayhistory.errors import MethodNotAllowed, UsageError
from rayhistory.mcp.protocol import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
    Message,
    respond,
)
from rayhistory.server.http.error_responses import plain_error_response
from rayhistory.server.http.paths import MCP
from rayhistory.server.http.responses import json_response
from rayhistory.server.http.view_routes import while_connected

_MAX_BODY_BYTES = 1 << 20
_STATUS = {
    PARSE_ERROR: 400, INVALID_REQUEST: 400, INVALID_PARAMS: 400, HEADER_MISMATCH: 400, UNSUPPORTED_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}  # fmt: skip
_FORWARDED_HEADERS = ("authorization", "x-ray-authorization")


async def mcp(request: Request) -> Response:
    if request.method != "POST":
        response = plain_error_response(MCP, MethodNotAllowed("send MCP messages by POST"))
        response.headers["Allow"] = "POST"
        return response
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            return plain_error_response(MCP, UsageError(f"message is larger than {_MAX_BODY_BYTES >> 20} MiB"))
    return await while_connected(request, _respond(request, body))


async def _respond(request: Request, body: bytes) -> Response:
    """Respond to a message. Tools send requests to this application as the visitor, so that all access rules apply."""
    headers = {name: request.headers[name] for name in _FORWARDED_HEADERS if name in request.headers}
    transport = InProcessTransport(request.app, request.client)
    base = f"{request.url.scheme}://{request.url.netloc}"
    async with httpx.AsyncClient(base_url=base, headers=headers, transport=transport) as http:
        message = await respond(body, AsyncHistory(http), dict(request.headers))
    if message is None:
        return Response(status_code=202)
    return json_response(message, _status(message))


def _status(message: Message) -> int:
    """Return the HTTP status of a reply. Clients with a handshake expect 200 for every reply."""
    error = message.get("error")
    return 200 if error is None else _STATUS.get(error["code"], 200)


ROUTES = [Route(MCP, mcp, methods=["GET", "POST", "DELETE"])]
