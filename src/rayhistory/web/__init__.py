"""Our own pages: the list of sessions, progress while one is indexed, and messages when something is wrong.

Values in, HTML out: nothing here knows a web framework, a store or a clock.
"""

from rayhistory.web.pages import (
    CONTENT_SECURITY_POLICY,
    HOME_JSON_PATH,
    HOME_PATH,
    STATIC_DIR,
    render_home,
    render_message,
    render_progress,
)
from rayhistory.web.rows import (
    SESSION_STATES,
    HomeFilters,
    NamedSession,
    SessionCounts,
    SessionRow,
    SessionState,
)

__all__ = [
    "CONTENT_SECURITY_POLICY",
    "HOME_JSON_PATH",
    "HOME_PATH",
    "SESSION_STATES",
    "STATIC_DIR",
    "HomeFilters",
    "NamedSession",
    "SessionCounts",
    "SessionRow",
    "SessionState",
    "render_home",
    "render_message",
    "render_progress",
]
