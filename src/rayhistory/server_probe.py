"""Check whether a history server responds, and whether it has a session."""

from collections.abc import Mapping

import httpx

from rayhistory.settings import Settings

_TIMEOUT_S = 10.0
_SESSION_PROBE = "api/history/metrics?from=0&to=0"
"""A path below a session to which the server responds without indexing the session."""


async def responds(server: str, settings: Settings, session_url: str = "") -> bool:
    """Return whether a history server responds at this URL, and has the session if one is named."""
    path = f"{session_url}{_SESSION_PROBE}" if session_url else "/livez"
    try:
        async with httpx.AsyncClient(headers=auth_headers(settings), timeout=_TIMEOUT_S) as http:
            return _is_from_server(await http.get(f"{server}{path}"))
    except (httpx.HTTPError, httpx.InvalidURL):
        return False


def has_session(server: str, session_url: str, headers: Mapping[str, str]) -> bool:
    """Return whether a history server at this URL has the session, for callers without an event loop of ours."""
    try:
        return _is_from_server(httpx.get(f"{server}{session_url}{_SESSION_PROBE}", headers=headers, timeout=_TIMEOUT_S))
    except (httpx.HTTPError, httpx.InvalidURL):
        return False


def _is_from_server(response: httpx.Response) -> bool:
    return response.status_code == 200 and not response.headers.get("content-type", "").startswith("text/html")


def auth_headers(settings: Settings) -> dict[str, str]:
    token = settings.ray_auth_token.strip()
    return {"Authorization": f"Bearer {token}"} if token else {}
