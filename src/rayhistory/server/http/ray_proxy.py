"""Requests that come through Ray's own dashboard (`ray start --proxy-server-url=…`), which is in front of us then.

It keeps a browser's headers, follows redirects itself, and answers what is not found here from its own, local cluster.
"""

from starlette.requests import HTTPConnection
from starlette.types import Message, Send

from rayhistory.server.redaction import is_browser

_MAY_BE_RAYS = ("/", "/favicon.ico", "/api/v0/platform_events")
_GONE = 410


def through_ray(request: HTTPConnection) -> bool:
    """Ray gives every request a JSON content type; a browser gives none to what has no body."""
    return is_browser(request) and request.headers.get("content-type") == "application/json"


def never_from_elsewhere(path: str, send: Send) -> Send:
    """What is not there is gone (410), so that nobody sees another cluster's in its place; frontends may be Ray's."""
    may_be_rays = path in _MAY_BE_RAYS or path.startswith("/static/")

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 404 and not may_be_rays:
            message = {**message, "status": _GONE}
        await send(message)

    return answer
