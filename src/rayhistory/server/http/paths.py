"""Paths that decide how a request is handled before a route is found."""

HISTORY_API = "/api/history/"
"""Prefix of our own API, at the root and below each session."""
PROMETHEUS_API = "/prometheus/api/v1/"
"""Prefix of Prometheus' HTTP API below each session."""
PROMETHEUS_FORMS = ("query", "query_range", "labels", "series")
"""Endpoints of Prometheus' API that also accept a form, because queries can be long."""
SQL_API = "/api/history/sql"
"""Path of SQL queries below each session. It takes JSON by POST."""
MCP = "/mcp"
"""Path of the Model Context Protocol. It takes JSON by POST."""
LOGIN, LOGOUT = "/login", "/logout"
AUTHENTICATION_MODE, AUTHENTICATE = "/api/authentication_mode", "/api/authenticate"
"""Paths of Ray's sign-in protocol, at the root and below each session."""
PUBLIC = ("/livez", "/readyz", "/readz", "/metrics", "/assets/")
"""Paths served without authentication: health, metrics and the static files of our own pages."""


def is_history_api(path: str) -> bool:
    return HISTORY_API in path


def is_prometheus_form(path: str) -> bool:
    return path.endswith(tuple(PROMETHEUS_API + name for name in PROMETHEUS_FORMS))


def is_frontend_file(path: str) -> bool:
    """Return True for files of Ray's frontend. A Ray dashboard in front of this server has its own copies."""
    return path == "/favicon.ico" or path.startswith("/static/")
