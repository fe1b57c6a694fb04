"""Renders our own pages from values, so that every page can be tested and looked at without a server.

All text is escaped, a template that names an unknown value fails, and nothing is inline: the content
security policy below allows only our own files.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rayhistory.web import format as text
from rayhistory.web.rows import SESSION_STATES, Dashboards, Gap, HomeFilters, NamedSession, SessionRow, owner_text

STATIC_DIR = Path(__file__).parent / "static"
HOME_PATH = "/home"
HOME_JSON_PATH = "/home.json"
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'"
)

_JOB_STATUSES = ("RUNNING", "PENDING", "SUCCEEDED", "FAILED", "STOPPED")
_STATE_MEANINGS = {
    "running": "The cluster is alive and being recorded",
    "ended": "The cluster ended and its record is complete",
    "vanished": "The cluster was lost without a clean end; shown is all that was recorded until then",
}
_LAST_SEEN = {"running": "Up to", "ended": "Ended", "vanished": "Last seen"}


def render_home(
    sessions: Sequence[SessionRow],
    *,
    filters: HomeFilters,
    total: int,
    next_page: str | None,
    previous_page: str | None,
    dashboards: Sequence[str],
    notice: str | None,
    store: str,
    now_ms: int,
    version: str,
) -> str:
    """The sessions of one view, in the order given.

    `total` counts the sessions of the view over all its pages; `next_page` and `previous_page` are links, `dashboards`
    the versions of Ray's frontend that can be chosen.
    """
    return _render(
        "home.html",
        sessions=sessions,
        filters=filters,
        total=total,
        next_page=next_page,
        previous_page=previous_page,
        dashboards=dashboards,
        notice=notice,
        store=store,
        now_ms=now_ms,
        version=version,
    )


def render_frame(
    session: SessionRow,
    *,
    moment_ms: int | None,
    last_ms: int,
    dashboards: Dashboards,
    now_ms: int,
    version: str,
) -> str:
    """Ray's frontend below a bar that says what is shown. `last_ms` is until when the session is known."""
    return _render(
        "frame.html",
        session=session,
        address=session.url.rstrip("/"),
        moment_ms=moment_ms,
        last_ms=last_ms,
        dashboards=dashboards,
        now_ms=now_ms,
        version=version,
    )


def render_gaps(session: SessionRow, gaps: Sequence[Gap], *, complete: bool, version: str) -> str:
    """What is missing from a session, in words."""
    return _render("gaps.html", session=session, gaps=gaps, complete=complete, version=version)


def render_message(*, status: int, title: str, message: str, hint: str | None, version: str) -> str:
    """An error as a page. What stands between backticks in `message` and `hint` is shown as code."""
    return _render(
        "message.html",
        status=status,
        phrase=_status_phrase(status),
        title=title,
        message=message,
        hint=hint,
        version=version,
    )


def render_login(*, following: str, signed_in: str | None, problem: str | None, done: bool, version: str) -> str:
    """Asks for a token; `done` says that it was taken, and goes on to `following`."""
    return _render("login.html", following=following, signed_in=signed_in, problem=problem, done=done, version=version)


def render_progress(
    *,
    session: NamedSession,
    title: str,
    detail: str,
    percent: int | None,
    refresh_seconds: int,
    version: str,
) -> str:
    """A page that asks again by itself, until the answer is what the visitor came for."""
    return _render(
        "progress.html",
        session=session,
        title=title,
        detail=detail,
        percent=None if percent is None else min(max(percent, 0), 100),
        refresh_seconds=max(refresh_seconds, 1),
        version=version,
    )


def _ordered_jobs(jobs: Mapping[str, int]) -> list[tuple[str, int]]:
    unknown = sorted(jobs.keys() - set(_JOB_STATUSES))
    return [(status, jobs[status]) for status in (*_JOB_STATUSES, *unknown) if jobs.get(status)]


def _status_phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        age=text.format_age,
        bytes=text.format_bytes,
        code_spans=text.code_spans,
        count=text.format_count,
        duration=text.format_duration,
        iso=text.format_iso,
        ordered_jobs=_ordered_jobs,
        owner=owner_text,
        plural=text.plural,
        short_session_name=text.short_session_name,
        utc=text.format_utc,
    )
    environment.globals.update(
        home_path=HOME_PATH,
        home_json_path=HOME_JSON_PATH,
        session_states=SESSION_STATES,
        state_meanings=_STATE_MEANINGS,
        last_seen=_LAST_SEEN,
        known_job_statuses=_JOB_STATUSES,
    )
    return environment


_ENVIRONMENT = _environment()


def _render(template: str, **values: object) -> str:
    return _ENVIRONMENT.get_template(template).render(values)
