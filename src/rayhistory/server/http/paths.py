"""Paths that decide how a request is handled before a route is found."""

HISTORY_API = "/api/history/"
"""Prefix of our own API, at the root and below each session."""
LOGIN, LOGOUT = "/login", "/logout"
AUTHENTICATION_MODE, AUTHENTICATE = "/api/authentication_mode", "/api/authenticate"
"""Ray's sign-in protocol, at the root and below each session."""
PUBLIC = ("/livez", "/readyz", "/readz", "/metrics", "/assets/")
"""Served without authentication: health, metrics and the static files of our own pages."""


def is_history_api(path: str) -> bool:
    return HISTORY_API in path


def is_frontend_file(path: str) -> bool:
    """Return True for files of Ray's frontend, which a Ray dashboard in front of this server has itself."""
    return path == "/favicon.ico" or path.startswith("/static/")
