"""Render pages from values, so that every page can be tested without a server.

All text is escaped, and an undefined template variable is an error. Scripts and styles are files, because the content
security policy forbids inline ones.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rayhistory.sizes import format_size
from rayhistory.web import format as formats
from rayhistory.web import sparklines
from rayhistory.web.ansi import remove_codes
from rayhistory.web.diagnosis_charts import CHART_HEIGHT, CHART_WIDTH, finding_marks, state_bars
from rayhistory.web.log_models import HistogramBar, LogPage, SearchForm, SearchResult, found_by, marked_texts
from rayhistory.web.models import (
    SESSION_STATES,
    DashboardVersions,
    DiagnosisValues,
    GapGroup,
    Link,
    NamedSession,
    SessionFilters,
    SessionRow,
    owner_text,
)

STATIC_DIR = Path(__file__).parent / "static"
HOME_PATH = "/home"
HOME_JSON_PATH = "/home.json"
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'"
)

_JOB_STATUSES = ("RUNNING", "PENDING", "SUCCEEDED", "FAILED", "STOPPED")
_STATE_MEANINGS = {
    "running": "The cluster is running and its collectors are active",
    "ended": "The cluster has ended and its nodes uploaded all data",
    "vanished": "The cluster disappeared without a clean shutdown; data ends at the last upload",
}
_DATA_AGE_LABELS = {"running": "Data as of", "ended": "Ended", "vanished": "Last data"}


def render_home(
    sessions: Sequence[SessionRow],
    *,
    filters: SessionFilters,
    total: int,
    next_page: str | None,
    previous_page: str | None,
    dashboards: Sequence[str],
    notice: str | None,
    store: str,
    now_ms: int,
    version: str,
    unsearched: int = 0,
    unindexed: int = 0,
) -> str:
    """Render the list of sessions.

    `total` counts the sessions on all pages. `next_page` and `previous_page` are URLs. `dashboards` has the installed
    versions of Ray's frontend. `unsearched` counts sessions of which only the names were searched.
    """
    return render_template(
        "home.html",
        sessions=sessions,
        filters=filters,
        total=total,
        unsearched=unsearched,
        unindexed=unindexed,
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
    as_of_ms: int | None,
    last_ms: int,
    dashboards: DashboardVersions,
    now_ms: int,
    version: str,
) -> str:
    """Render the bar and the iframe for Ray's frontend. `last_ms` is the time of the last data."""
    return render_template(
        "frame.html",
        session=session,
        session_path=session.url.rstrip("/"),
        as_of_ms=as_of_ms,
        last_ms=last_ms,
        dashboards=dashboards,
        now_ms=now_ms,
        version=version,
    )


def render_report(report: Mapping[str, object], *, is_cut: bool, version: str) -> str:
    """Render a report of a session: one file without scripts that can be opened without a server."""
    return render_template("report.html", report=report, is_cut=is_cut, version=version)


def render_gaps(session: SessionRow, gaps: Sequence[GapGroup], *, complete: bool, version: str) -> str:
    return render_template("gaps.html", session=session, gaps=gaps, complete=complete, version=version)


def render_charts(*, cluster: str, uid: str, title: str, solo: bool, running: bool, version: str) -> str:
    """Render the page of a Grafana dashboard, or with `solo` of one panel. Its script loads the data."""
    return render_template(
        "charts.html", cluster=cluster, uid=uid, title=title, solo=solo, running=running, version=version
    )  # fmt: skip


def render_diagnosis(session: SessionRow, diagnosis: DiagnosisValues, *, as_of_ms: int | None, version: str) -> str:
    """Render the verdict, the findings with their evidence, and the chart of tasks by state over time."""
    base = session.url if as_of_ms is None else f"{session.url.rstrip('/')}@{as_of_ms}/"
    return render_template(
        "diagnosis.html",
        session=session,
        diagnosis=diagnosis,
        bars=state_bars(diagnosis.states.states),
        marks=finding_marks(diagnosis.findings, diagnosis.started_ms, diagnosis.ended_ms),
        chart=(CHART_WIDTH, CHART_HEIGHT),
        base=base,
        as_of_ms=as_of_ms,
        version=version,
    )


def render_search(
    session: SessionRow | None,
    query: SearchForm,
    *,
    result: SearchResult | None,
    error: str | None,
    view_json: str | None,
    next_page: str | None,
    count_page: str | None = None,
    bars: Sequence[HistogramBar] = (),
    api_path: str = "",
    search_params: str = "",
    version: str,
) -> str:
    """Render the search in the logs of a session, or of all sessions. Hits are untrusted."""
    return render_template(
        "search.html",
        session=session,
        query=query,
        search_params=search_params,
        result=result,
        error=error,
        view_json=view_json,
        next_page=next_page,
        count_page=count_page,
        bars=bars,
        api_path=api_path,
        version=version,
    )


def render_log(session: SessionRow, page: LogPage, *, version: str) -> str:
    """Render a window of a log file."""
    return render_template("log.html", session=session, **msgspec.structs.asdict(page), version=version)


def render_message(
    *, status: int, title: str, message: str, hint: str | None, version: str, link: Link | None = None
) -> str:
    """Render an error. Text between backticks in `message` and `hint` is shown as code."""
    return render_template(
        "message.html",
        status=status,
        phrase=_status_phrase(status),
        title=title,
        message=message,
        hint=hint,
        link=link,
        version=version,
    )


def render_login(*, next_path: str, signed_in: str | None, error: str | None, done: bool, version: str) -> str:
    """Render the sign-in form, or with `done` a page that continues to `next_path`."""
    return render_template(
        "login.html", next_path=next_path, signed_in=signed_in, error=error, done=done, version=version
    )


def render_progress(
    *,
    session: NamedSession,
    title: str,
    detail: str,
    percent: int | None,
    refresh_seconds: int,
    version: str,
) -> str:
    """Render a page that refreshes itself until the session is indexed."""
    return render_template(
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
        age=formats.format_age,
        bytes=format_size,
        code_spans=formats.code_spans,
        count=formats.format_count,
        duration=formats.format_duration,
        found_by=found_by,
        hours=formats.format_hours,
        iso=formats.format_iso,
        marked=marked_texts,
        most_runs=sparklines.most_runs,
        ordered_jobs=_ordered_jobs,
        owner=owner_text,
        percent=formats.format_percent,
        plural=formats.plural,
        run_kind=formats.run_kind,
        remove_codes=remove_codes,
        short_ms=formats.format_short_ms,
        spark_points=sparklines.spark_points,
        spark_text=sparklines.spark_text,
        spark_width=sparklines.spark_width,
        status_class=formats.status_class,
        sentence_case=formats.sentence_case,
        short_session_name=formats.short_session_name,
        utc=formats.format_utc,
        utc_seconds=formats.format_utc_seconds,
    )
    environment.globals.update(
        home_path=HOME_PATH,
        home_json_path=HOME_JSON_PATH,
        session_states=SESSION_STATES,
        state_meanings=_STATE_MEANINGS,
        data_age_labels=_DATA_AGE_LABELS,
        job_statuses=_JOB_STATUSES,
    )
    return environment


_ENVIRONMENT = _environment()


def render_template(template: str, **values: object) -> str:
    return _ENVIRONMENT.get_template(template).render(values)
