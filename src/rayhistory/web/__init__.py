"""Our own pages: the list of sessions, the bar around a dashboard, gaps, progress, and messages.

Values in, HTML out: nothing here knows a web framework, a store or a clock.
"""

from rayhistory.web.pages import (
    CONTENT_SECURITY_POLICY,
    HOME_JSON_PATH,
    HOME_PATH,
    STATIC_DIR,
    render_frame,
    render_gaps,
    render_home,
    render_login,
    render_message,
    render_progress,
)
from rayhistory.web.rows import (
    OWNERS,
    SESSION_STATES,
    SORTS,
    Course,
    Dashboards,
    Gap,
    HomeFilters,
    Mark,
    NamedSession,
    SessionCounts,
    SessionRow,
    SessionState,
)

__all__ = [
    "CONTENT_SECURITY_POLICY",
    "HOME_JSON_PATH",
    "HOME_PATH",
    "OWNERS",
    "SESSION_STATES",
    "SORTS",
    "STATIC_DIR",
    "Course",
    "Dashboards",
    "Gap",
    "HomeFilters",
    "Mark",
    "NamedSession",
    "SessionCounts",
    "SessionRow",
    "SessionState",
    "render_frame",
    "render_gaps",
    "render_home",
    "render_login",
    "render_message",
    "render_progress",
]
