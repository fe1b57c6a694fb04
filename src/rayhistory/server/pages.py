"""Our own pages as answers: a message, an error, how far the indexing of a session is."""

from starlette.responses import Response

from rayhistory import __version__, web
from rayhistory.errors import NotIndexedYet, RayHistoryError
from rayhistory.server.routing import retry, status_of

_TITLES = {400: "This address cannot be read", 404: "No such session", 503: "Not now"}


def page_answer(text: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    guarded = {
        "Content-Security-Policy": web.CONTENT_SECURITY_POLICY,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "SAMEORIGIN",
        "Cache-Control": "no-store",
    }
    return Response(text, status, guarded | (headers or {}), "text/html")


def message_page(status: int, title: str, message: str, hint: str | None) -> Response:
    text = web.render_message(status=status, title=title, message=message, hint=hint, version=__version__)
    return page_answer(text, status, retry(status))


def error_page(error: RayHistoryError) -> Response:
    status = status_of(error)
    hint = "Go back to the list of sessions and choose one." if status in (400, 404) else None
    return message_page(status, _TITLES.get(status, "This session cannot be shown"), str(error), hint)


def progress_page(session: web.NamedSession, progress: NotIndexedYet) -> Response:
    text = web.render_progress(
        session=session,
        title="This session is being indexed",
        detail=str(progress),
        percent=int(progress.progress * 100) if progress.progress else None,
        refresh_seconds=1,
        version=__version__,
    )
    return page_answer(text)
