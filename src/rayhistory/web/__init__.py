"""HTML pages of the history server: sessions, the frame page, gaps, progress, messages and login.

Pure rendering from values: no web framework, store or clock.
"""

from rayhistory.web.models import (
    OWNERS,
    SESSION_STATES,
    SORTS,
    DashboardVersions,
    DiagnosisValues,
    FailureMarker,
    GapGroup,
    GapLocation,
    NamedSession,
    SessionFilters,
    SessionOverview,
    SessionRow,
    SessionRowCounts,
    SessionState,
)
from rayhistory.web.render import (
    CONTENT_SECURITY_POLICY,
    HOME_JSON_PATH,
    HOME_PATH,
    STATIC_DIR,
    render_charts,
    render_diagnosis,
    render_frame,
    render_gaps,
    render_home,
    render_login,
    render_message,
    render_progress,
)

__all__ = [
    "CONTENT_SECURITY_POLICY",
    "HOME_JSON_PATH",
    "HOME_PATH",
    "OWNERS",
    "SESSION_STATES",
    "SORTS",
    "STATIC_DIR",
    "DashboardVersions",
    "DiagnosisValues",
    "FailureMarker",
    "GapGroup",
    "GapLocation",
    "NamedSession",
    "SessionFilters",
    "SessionOverview",
    "SessionRow",
    "SessionRowCounts",
    "SessionState",
    "render_charts",
    "render_diagnosis",
    "render_frame",
    "render_gaps",
    "render_home",
    "render_login",
    "render_message",
    "render_progress",
]
