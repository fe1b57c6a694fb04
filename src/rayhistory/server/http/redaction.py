"""Detect browsers, which get no values of environment variables, as in Ray 2.60. Command lines and SDKs get them."""

from starlette.requests import HTTPConnection

_BROWSER_HEADERS = ("referer", "origin")
_BROWSER_HEADER_PREFIXES = ("sec-fetch-", "access-control-request-")


def is_browser(request: HTTPConnection) -> bool:
    if request.headers.get("user-agent", "").startswith("Mozilla"):
        return True
    return any(name in _BROWSER_HEADERS or name.startswith(_BROWSER_HEADER_PREFIXES) for name in request.headers)
