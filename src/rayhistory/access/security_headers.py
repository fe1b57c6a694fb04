"""Headers that keep a browser from doing what nobody meant, on every answer."""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PLAIN = "default-src 'none'; frame-ancestors 'self'"


def dashboard_policy(frames: tuple[str, ...] = ()) -> str:
    """Ray's frontend makes styles while it runs and has images in its code; all else is in files of this server."""
    own = " ".join(("'self'", *frames))
    return (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
        f"frame-src {own}; worker-src 'self' blob:; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'self'"
    )


class SecurityHeaders:
    """Those that a route has set itself are left as they are."""

    def __init__(self, app: ASGIApp, *, private: bool, frames: tuple[str, ...] = ()) -> None:
        self._app = app
        self._page = dashboard_policy(frames)
        self._always = {
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "SAMEORIGIN",
            "Referrer-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        if private:
            self._always["Cache-Control"] = "private, no-cache"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                is_page = headers.get("content-type", "").startswith("text/html")
                headers.setdefault("Content-Security-Policy", self._page if is_page else _PLAIN)
                for name, value in self._always.items():
                    headers.setdefault(name, value)
                message = {**message, "headers": headers.raw}
            await send(message)

        await self._app(scope, receive, with_headers)
