"""The report as one self-contained HTML file of limited size."""

from typing import Any

import msgspec
from markupsafe import Markup

from rayhistory.bundle.line_chart import line_chart
from rayhistory.bundle.report import Report
from rayhistory.terminal_text import strip_ansi
from rayhistory.web import render_report

MAX_BYTES = 5_000_000
_MAX_TEXT_CHARS = 20_000
_MIN_TEXT_CHARS = 100


def report_page(report: Report, version: str) -> bytes:
    """Render the report. Long texts and lists are cut until the page fits the size limit, and it says so."""
    chars = _MAX_TEXT_CHARS
    while True:
        page = _render(report, version, chars)
        if len(page) <= MAX_BYTES or chars <= _MIN_TEXT_CHARS:
            return page
        chars //= 4


def _render(report: Report, version: str, chars: int) -> bytes:
    rows = max(1, len(report.failed) * chars // _MAX_TEXT_CHARS)
    charts = [(chart.title, Markup(line_chart(chart.series, chart.unit))) for chart in report.charts]  # noqa: S704
    values = _cut(msgspec.to_builtins(msgspec.structs.replace(report, failed=report.failed[:rows], charts=[])), chars)
    return render_report(values | {"charts": charts}, is_cut=chars < _MAX_TEXT_CHARS, version=version).encode()


def _cut(value: Any, chars: int) -> Any:
    """Cut all texts of a document in the middle."""
    if isinstance(value, dict):
        return {key: _cut(item, chars) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(item, chars) for item in value]
    if isinstance(value, str):
        text = strip_ansi(value)
        return text if len(text) <= chars else f"{text[: chars // 2]} … {text[-chars // 2 :]}"
    return value
