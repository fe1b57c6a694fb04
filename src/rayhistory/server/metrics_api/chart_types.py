"""Types of the charts API."""

import msgspec


class DashboardTitle(msgspec.Struct):
    uid: str
    title: str


class DashboardTitles(msgspec.Struct):
    dashboards: list[DashboardTitle]
    from_session: bool
    """True if the session has its own Grafana dashboards. Otherwise the built-in dashboards are used."""
    first_ms: int
    last_ms: int
    """Times of the first and last samples; 0 if none are stored."""


class VariableOptions(msgspec.Struct):
    name: str
    label: str
    multi: bool
    include_all: bool
    hidden: bool
    options: list[str]
    values: list[str]


class PanelInfo(msgspec.Struct):
    """A panel without its queries."""

    id: int
    title: str
    kind: str
    grafana_type: str
    description: str
    unit: str
    x: int
    y: int
    w: int
    h: int
    min: float | None
    max: float | None
    line_width: float
    connect_gaps: bool
    show_legend: bool


class ChartRow(msgspec.Struct):
    title: str
    collapsed: bool
    panels: list[PanelInfo]


class ChartDashboard(msgspec.Struct):
    uid: str
    title: str
    first_ms: int
    last_ms: int
    """Times of the first and last samples; 0 if none are stored."""
    variables: list[VariableOptions]
    rows: list[ChartRow]


class ChartMarker(msgspec.Struct):
    """An event that is drawn as a line across all charts."""

    at_ms: int
    kind: str
    """Kind of the event: failure, node_died, job_started or job_ended."""
    text: str


class ChartMarkers(msgspec.Struct):
    markers: list[ChartMarker]
    total: int
    """Number of all markers. If there are too many, only some are listed, failures first."""
