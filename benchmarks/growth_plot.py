"""Draw figures of a growing session as SVG: panels above each other, with the same horizontal axis."""

from collections.abc import Sequence
from typing import NamedTuple

WIDTH, PANEL, LEFT, RIGHT, TOP, GAP, BOTTOM = 640, 130, 60, 20, 24, 30, 40
COLOURS = ("#036DCF", "#D94F04", "#3A7D34")
TICKS = 4


class Series(NamedTuple):
    title: str
    values: list[float]


def growth_plot(sizes: Sequence[float], label: str, panels: Sequence[Series]) -> str:
    """Return an SVG with a panel for each series. Each vertical axis begins at 0."""
    height = TOP + len(panels) * (PANEL + GAP) + BOTTOM - GAP
    largest = max(sizes)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, series in enumerate(panels):
        top = TOP + number * (PANEL + GAP)
        parts += _panel(series, [size / largest for size in sizes], top, COLOURS[number % len(COLOURS)])
    for tick in range(TICKS + 1):
        across = LEFT + (WIDTH - LEFT - RIGHT) * tick / TICKS
        text = f"{largest * tick / TICKS:,.0f}"
        parts.append(f'<text x="{across:.1f}" y="{height - BOTTOM + 18}" text-anchor="middle">{text}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{height - 6}" text-anchor="middle">{label}</text></svg>')
    return "\n".join(parts) + "\n"


def _panel(series: Series, shares: Sequence[float], top: float, colour: str) -> list[str]:
    highest = max(series.values) or 1.0
    parts = [f'<text x="{LEFT}" y="{top - 8}" fill="{colour}">{series.title}</text>']
    for value in (0.0, highest / 2, highest):
        up = top + PANEL * (1 - value / highest)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up:.1f}" y2="{up:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{up + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    points = " ".join(
        f"{LEFT + (WIDTH - LEFT - RIGHT) * share:.1f},{top + PANEL * (1 - value / highest):.1f}"
        for share, value in zip(shares, series.values, strict=True)
    )
    return [*parts, f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>']
