"""Pages about runs: the list, one group, a comparison, and the fleet."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from rayhistory.web.render import render_template

_WIDTH, _HEIGHT, _TOP = 760, 160, 14


class RunPoint(Protocol):
    """One run on a chart."""

    @property
    def started_ms(self) -> int | None: ...
    @property
    def duration_ms(self) -> int | None: ...
    @property
    def status(self) -> str: ...
    @property
    def ray_version(self) -> str: ...
    @property
    def python_version(self) -> str: ...
    @property
    def runtime_env(self) -> str: ...


class PlottedRun(msgspec.Struct, frozen=True):
    x: float
    y: float
    run: object


class VersionMark(msgspec.Struct, frozen=True):
    """A run with another version of Ray or Python, or another runtime environment, than the run before."""

    x: float
    text: str


class DurationChart(msgspec.Struct, frozen=True):
    """Durations over time, one point per run, as coordinates of an SVG."""

    points: list[PlottedRun]
    versions: list[VersionMark]
    max_ms: int
    width: int = _WIDTH
    height: int = _HEIGHT
    top: int = _TOP


def duration_chart(newest_first: Sequence[RunPoint]) -> DurationChart | None:
    """Place runs from left to right at equal distances; None if no run has a duration."""
    runs = [run for run in reversed(newest_first) if run.duration_ms is not None]
    if not runs:
        return None
    max_ms = max(run.duration_ms or 0 for run in runs) or 1
    step = _WIDTH / max(len(runs), 2)
    points, versions, before = [], [], runs[0]
    for number, run in enumerate(runs):
        x = round(step * (number + 0.5), 1)
        y = round(_HEIGHT - (run.duration_ms or 0) / max_ms * (_HEIGHT - _TOP), 1)
        points.append(PlottedRun(x, y, run))
        if changes := _changes(before, run):
            versions.append(VersionMark(round(x - step / 2, 1), changes))
        before = run
    return DurationChart(points, versions, max_ms)


def _changes(before: RunPoint, run: RunPoint) -> str:
    """Return the versions that changed. Unknown versions are ignored."""
    versions = {"Ray": (before.ray_version, run.ray_version), "Python": (before.python_version, run.python_version)}
    changed = [f"{name} {new}" for name, (old, new) in versions.items() if old and new and old != new]
    return ", ".join([*changed, *(["new environment"] if before.runtime_env != run.runtime_env else [])])


def render_runs(
    groups: Sequence[object], *, filters: object, total: int, notes: Sequence[str], has_prices: bool,
    next_page: str | None, previous_page: str | None, now_ms: int, version: str,
) -> str:  # fmt: skip
    """Render the list of groups. `notes` tell what is missing from it."""
    return render_template(
        "runs.html", groups=groups, filters=filters, total=total, notes=notes, has_prices=has_prices,
        next_page=next_page, previous_page=previous_page, now_ms=now_ms, version=version,
    )  # fmt: skip


def render_run_group(
    details: object, *, chart: DurationChart | None, compare_url: str | None, now_ms: int, version: str
) -> str:
    """Render one group: durations over time, the time of each function in each run, and fingerprints."""
    return render_template(
        "run_group.html", details=details, chart=chart, compare_url=compare_url, now_ms=now_ms, version=version
    )


def render_compare(comparison: object, *, show_all: bool, all_url: str, json_url: str, version: str) -> str:
    """Render a comparison of sessions. Without `show_all`, only differences are shown."""
    return render_template(
        "compare.html", comparison=comparison, show_all=show_all, all_url=all_url, json_url=json_url, version=version
    )


def render_fleet(fleet: object, *, filters: object, version: str) -> str:
    """Render the figures of the whole fleet."""
    return render_template("fleet.html", fleet=fleet, filters=filters, version=version)
