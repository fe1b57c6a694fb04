"""The OpenAPI 3.1 document of the history API, generated from the routes and their descriptions."""

from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayhistory import __version__
from rayhistory.server.api_routes import SESSION_ROUTES
from rayhistory.server.history_api.api_types import ErrorResponse
from rayhistory.server.http.paths import HISTORY_API
from rayhistory.server.http.responses import json_response
from rayhistory.server.openapi.descriptions import DOCUMENT_PATH, SERVER_ENDPOINTS, SESSION_ENDPOINTS
from rayhistory.server.openapi.endpoint_description import Endpoint

SESSION_PATH = "/s/{namespace}/{cluster}/{session}"
_SCHEMA_REF = "#/components/schemas/{name}"

_SESSION_PARAMETERS: tuple[dict[str, Any], ...] = tuple(
    {"name": name, "in": "path", "required": True, "description": text, "schema": {"type": "string"}}
    for name, text in (
        ("namespace", "the Kubernetes namespace"),
        ("cluster", "the cluster, or ~rayjob/{name} or ~rayservice/{name} for the newest cluster of an owner"),
        ("session", "the session's name, or latest; with @{ms since 1970} the session as of that time"),
    )
)
_ERRORS = {
    "400": "invalid parameter or path",
    "401": "not signed in: send a token",
    "403": "access denied: the token is invalid, or gives no access to the session's namespace",
    "404": "session not found",
    "429": "too many expensive calls or invalid tokens in a minute: retry after Retry-After seconds",
    "500": "the session could not be indexed",
    "503": "the store is unavailable, or the session is being indexed: retry after Retry-After seconds",
}


def api_paths(paths: Iterable[str]) -> list[str]:
    """Return the paths that belong to the history API."""
    return sorted({path for path in paths if path.startswith(HISTORY_API)})


def build_document(server_paths: Iterable[str], session_paths: Iterable[str]) -> dict[str, Any]:
    """Build the document. Raises KeyError for a route without a description."""
    endpoints = (SERVER_ENDPOINTS | SESSION_ENDPOINTS).values()
    types = [ErrorResponse, *(each for endpoint in endpoints for each in endpoint.responses)]
    types += [endpoint.body for endpoint in endpoints if endpoint.body]
    _, schemas = msgspec.json.schema_components(types, ref_template=_SCHEMA_REF)
    paths: dict[str, dict[str, Any]] = {}
    for path in api_paths(server_paths):
        endpoint = SERVER_ENDPOINTS[path]
        paths[path] = {endpoint.method: _operation(path, endpoint)}
    for path in api_paths(session_paths):
        endpoint = SESSION_ENDPOINTS[path]
        paths[SESSION_PATH + path] = {
            endpoint.method: _operation(path, endpoint),
            "parameters": list(_SESSION_PARAMETERS),
        }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Ray History Server",
            "version": __version__,
            "description": "What Ray's own API does not offer. The API is read-only.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(path: str, endpoint: Endpoint) -> dict[str, Any]:
    bodies = [{"$ref": _SCHEMA_REF.format(name=body.__name__)} for body in endpoint.responses]
    schema: dict[str, Any] = {"anyOf": bodies} if len(bodies) > 1 else bodies[0] if bodies else {"type": "object"}
    content = {endpoint.media_type: {}} if endpoint.media_type else _json(schema)
    error = {"$ref": _SCHEMA_REF.format(name=ErrorResponse.__name__)}
    return {
        "summary": endpoint.summary,
        "operationId": endpoint.operation or path.removeprefix(HISTORY_API).partition("/")[0].partition(".")[0],
        "parameters": list(endpoint.parameters),
        **_request_body(endpoint),
        "responses": {
            "200": {"description": "success", "content": content},
            **{status: {"description": text, "content": _json(error)} for status, text in _ERRORS.items()},
        },
    }


def _request_body(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.body is None:
        return {}
    return {
        "requestBody": {
            "required": True,
            "content": _json({"$ref": _SCHEMA_REF.format(name=endpoint.body.__name__)}),
        }
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


async def openapi_document(request: Request) -> Response:
    server_paths = [route.path for route in request.app.routes if isinstance(route, Route)]
    session_paths = [route.path for route in SESSION_ROUTES if isinstance(route, Route)]
    return json_response(build_document(server_paths, session_paths))


ROUTES = [Route(DOCUMENT_PATH, openapi_document)]
