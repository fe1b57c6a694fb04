"""A line chart as SVG without scripts, because a report must work without a server."""

from collections.abc import Sequence
from html import escape
from math import isfinite

from rayhistory.web.format import format_iso

Series = tuple[str, Sequence[tuple[int, float]]]
"""One line of a chart: its name, and its points (time in ms, value)."""

WIDTH, HEIGHT = 640, 160
_LEFT, _BOTTOM, _TOP = 64, 22, 8
_COLOURS = ("#2f6fd0", "#d1603d", "#3a9d5d", "#8a5cc2", "#b58900", "#c2477f", "#2aa198", "#7a7a7a")
MAX_SERIES = len(_COLOURS)


def line_chart(series: Sequence[Series], unit: str = "") -> str:
    """Draw up to eight series from zero to their highest value. Return an empty text if there are no points."""
    shown = [(name, [point for point in points if isfinite(point[1])]) for name, points in series[:MAX_SERIES]]
    points = [point for _, each in shown for point in each]
    if not points:
        return ""
    first, last = min(time for time, _ in points), max(time for time, _ in points)
    top = max(0.0, *(value for _, value in points)) or 1.0

    def position(point: tuple[int, float]) -> str:
        x = _LEFT + (point[0] - first) / max(last - first, 1) * (WIDTH - _LEFT - 4)
        y = HEIGHT - _BOTTOM - max(point[1], 0.0) / top * (HEIGHT - _BOTTOM - _TOP)
        return f"{x:.1f},{y:.1f}"

    lines = "".join(
        f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{" ".join(map(position, each))}">'
        f"<title>{escape(name)}</title></polyline>"
        for colour, (name, each) in zip(_COLOURS, shown, strict=False)
    )
    base = HEIGHT - _BOTTOM
    labels = "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
        for x, y, anchor, text in (
            (_LEFT - 6, _TOP + 8, "end", f"{_short(top)}{unit}"),
            (_LEFT - 6, base, "end", "0"),
            (_LEFT, HEIGHT - 6, "start", format_iso(first)),
            (WIDTH - 4, HEIGHT - 6, "end", format_iso(last)),
        )
    )
    axis = f'<path d="M{_LEFT} {_TOP}V{base}H{WIDTH - 4}" fill="none" stroke="currentColor" opacity=".4"/>'
    legend = "".join(
        f'<li><span style="background:{colour}"></span>{escape(name)}</li>'
        for colour, (name, _) in zip(_COLOURS, shown, strict=False)
    )
    more = f"<li>{len(series) - MAX_SERIES} more not drawn</li>" if len(series) > MAX_SERIES else ""
    drawing = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{axis}{lines}{labels}</svg>'
    return f'{drawing}<ul class="legend">{legend}{more}</ul>'


def _short(value: float) -> str:
    for limit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g} {suffix}"
    return f"{value:.3g} "
