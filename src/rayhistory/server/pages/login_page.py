"""The login page, for visitors who sign in with a token and without Ray's dialog."""

from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response

from rayhistory import __version__, web
from rayhistory.errors import AccessError
from rayhistory.server.http.admission import Admission
from rayhistory.server.http.error_responses import error_headers
from rayhistory.server.http.message_page import page_response


async def login_page(admission: Admission, connection: HTTPConnection) -> Response:
    if not admission.access.takes_tokens:
        return RedirectResponse(web.HOME_PATH, 303)
    try:
        signed_in = (await admission.identify(connection)).name
    except AccessError:
        signed_in = None
    return page_response(_render(connection.query_params.get("next", ""), signed_in=signed_in))


def login_result_page(next_path: str, *, signed_in: str | None = None, error: AccessError | None = None) -> Response:
    """Continue to `next_path` after a successful sign-in, or show the form again with the error."""
    if error is None:
        return page_response(_render(next_path, signed_in=signed_in, done=True))
    return page_response(_render(next_path, error=str(error)), error.http_status, error_headers(error))


def _render(next_path: str, *, signed_in: str | None = None, error: str | None = None, done: bool = False) -> str:
    return web.render_login(
        next_path=local_path(next_path), signed_in=signed_in, error=error, done=done, version=__version__
    )


def local_path(path: str) -> str:
    """Return the path if it stays on this server, else the home page."""
    is_local = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_local else web.HOME_PATH
