"""Security headers on every response."""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_DATA_POLICY = "default-src 'none'; frame-ancestors 'self'"


def dashboard_policy(frame_origins: tuple[str, ...] = ()) -> str:
    """Content security policy for Ray's frontend, which needs inline styles and data: images."""
    frame_sources = " ".join(("'self'", *frame_origins))
    return (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
        f"frame-src {frame_sources}; worker-src 'self' blob:; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'self'"
    )


class SecurityHeadersMiddleware:
    """Adds security headers, unless a route has set them."""

    def __init__(self, app: ASGIApp, *, private: bool, frame_origins: tuple[str, ...] = ()) -> None:
        self._app = app
        self._page_policy = dashboard_policy(frame_origins)
        self._headers = {
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "SAMEORIGIN",
            "Referrer-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        if private:
            self._headers["Cache-Control"] = "private, no-cache"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                is_page = headers.get("content-type", "").startswith("text/html")
                headers.setdefault("Content-Security-Policy", self._page_policy if is_page else _DATA_POLICY)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
                message = {**message, "headers": headers.raw}
            await send(message)

        await self._app(scope, receive, send_with_headers)
