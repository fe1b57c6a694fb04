"""What every request passes on its way in, and every answer on its way out."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayhistory.server.answers import own_error, text_answer
from rayhistory.server.guard import signs_in_or_out
from rayhistory.server.openapi import PREFIX


def is_ours(path: str) -> bool:
    """Whether this is our own API, with or without the address of a session."""
    return PREFIX in path


class ReadOnly:
    """Nothing can be changed here: what is not reading, or signing in or out, is refused before any route sees it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in {"GET", "HEAD"} and not signs_in_or_out(scope):
            text = f"{scope['method']} is not possible here: this is history, and can only be read"
            answer = own_error(text, 405) if is_ours(scope["path"]) else text_answer(text, 405)
            answer.headers["Allow"] = "GET, HEAD"
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)


class Mishaps:
    """What nobody foresaw is answered here, inside of what counts answers and gives them their headers; the server
    that runs this writes down what it was."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception:
            if scope["type"] == "http" and not started:
                text = "Internal Server Error"
                answer = own_error(text, 500) if is_ours(scope["path"]) else text_answer(text, 500)
                await answer(scope, receive, send)
            raise


class Measure:
    """Counts answers and their time."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope["app"].state
        began = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                state.requests.labels(message["status"]).inc()
                state.seconds.observe(time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, counted)
