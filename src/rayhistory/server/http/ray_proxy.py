"""Requests that come through a Ray dashboard in front of this server (`ray start --proxy-server-url=…`).

That dashboard forwards a browser's headers and follows redirects itself. It replaces a 404 of this server by a response
about its own local cluster.
"""

from starlette.requests import HTTPConnection
from starlette.types import Message, Send

from rayhistory.server.http.paths import is_frontend_file
from rayhistory.server.http.redaction import is_browser

_SERVED_BY_RAY = ("/", "/api/v0/platform_events")
_GONE = 410


def is_ray_proxy_request(request: HTTPConnection) -> bool:
    """Detect a browser behind Ray's dashboard."""
    return is_browser(request) and came_through_ray(request)


def came_through_ray(request: HTTPConnection) -> bool:
    """Detect Ray's dashboard by its JSON content type. Other clients send no content type without a body."""
    return request.headers.get("content-type") == "application/json"


def is_kuberay_request(request: HTTPConnection) -> bool:
    """Return True for clients of KubeRay's API, which select a session by cookies and talk to this server directly.

    They get the status codes of KubeRay. All other clients get those of Ray.
    """
    return request.scope["rayhistory.selection"].from_cookies and not came_through_ray(request)


def hide_not_found(path: str, send: Send) -> Send:
    """Turn 404 into 410, because Ray's dashboard would replace a 404 by data of its own cluster.

    Paths that Ray's dashboard should serve itself keep the status 404.
    """
    may_be_rays = path in _SERVED_BY_RAY or is_frontend_file(path)

    async def send_gone(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 404 and not may_be_rays:
            message = {**message, "status": _GONE}
        await send(message)

    return send_gone
