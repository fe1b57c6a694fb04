"""Values that templates render and that the JSON endpoints of the pages return."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol, get_args
from urllib.parse import urlencode

import msgspec

from rayhistory.web.diagnosis_charts import TimedFinding

SessionState = Literal["running", "ended", "vanished"]
SESSION_STATES: tuple[SessionState, ...] = get_args(SessionState)
OWNERS = {"rayjob": "RayJob", "rayservice": "RayService", "none": "No owner"}
SINCE = {"1h": "Last hour", "24h": "Last 24 hours", "7d": "Last 7 days", "30d": "Last 30 days"}
SORTS = ("started", "-started", "cluster", "-cluster", "namespace", "-namespace", "failed", "-failed")
_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"


class NamedSession(Protocol):
    """An object that identifies a session."""

    @property
    def namespace(self) -> str: ...
    @property
    def cluster(self) -> str: ...
    @property
    def session(self) -> str: ...


class SessionRowCounts(msgspec.Struct, frozen=True, kw_only=True):
    jobs: dict[str, int]
    tasks: int
    failed_tasks: int
    actors: int
    nodes: int
    gaps: int


class UtilizationLine(msgspec.Struct, frozen=True):
    """Utilization of one resource over the time of a session in percent, in equal steps; None if not measured."""

    name: str
    values: list[float | None]
    step_ms: int = 1000


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One session in the list. `counts` is None while the session has no index or the index cannot be read."""

    namespace: str
    cluster: str
    session: str
    state: SessionState
    url: str
    owner_kind: str | None = None
    owner_name: str | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    ray_version: str | None = None
    size_bytes: int | None = None
    """Size of the session's objects without its index. For a running session, only its events."""
    index_bytes: int | None = None
    counts: SessionRowCounts | None = None
    unreadable: bool = False
    """True if the store is unavailable, so that it is unknown whether there is an index."""
    dashboard: str | None = None
    """The version of Ray's frontend that the session opens in by default."""
    headline: str | None = None
    """Why the session failed, in one line; None if it did not, or if there is no diagnosis yet."""
    utilization: list[UtilizationLine] = []
    """Utilization of CPU, memory and GPU. Empty while the metrics are not processed."""

    @property
    def owner(self) -> str | None:
        """The owner as it appears in URLs."""
        return f"{self.owner_kind}/{self.owner_name}" if self.owner_kind and self.owner_name else None

    def duration_ms(self, now_ms: int) -> int | None:
        """Return the duration until now or until the end; None if unknown."""
        end_ms = now_ms if self.state == "running" else self.ended_ms
        if self.started_ms is None or end_ms is None or end_ms < self.started_ms:
            return None
        return end_ms - self.started_ms


class SessionFilters(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of the session list, as in the URL.

    `page` is None for the first page. `namespaces` are the choices of the namespace filter.
    """

    q: str = ""
    namespace: str | None = None
    cluster: str | None = None
    failed: bool = False
    """Only sessions that failed: a job failed, or the cluster vanished."""
    state: SessionState | None = None
    owner: str | None = None
    """Owner to filter by: a kind, or a kind and a name (`rayjob/nightly`), or `none` for clusters without an owner."""
    since: str | None = None
    """Only sessions started within this time, such as `24h` or `7d`."""
    start: str | None = None
    end: str | None = None
    """End of the range of start times; `start` is its beginning."""
    sort: str | None = None
    page: str | None = None
    namespaces: list[str] = []

    @property
    def active(self) -> bool:
        chosen = (self.q, self.namespace, self.cluster, self.failed, self.state, self.owner, self.since)
        return any((*chosen, self.start, self.end))

    @property
    def namespace_choices(self) -> list[tuple[str, str]]:
        return namespace_choices(self.namespaces, self.namespace)

    @property
    def owner_choices(self) -> list[tuple[str, str]]:
        """All choices of the owner filter, including a single owner that a link selected."""
        single = [(self.owner, owner_text(*self.owner.split("/", 1)))] if self.owner and "/" in self.owner else []
        return [*OWNERS.items(), *single]

    @property
    def since_choices(self) -> list[tuple[str, str]]:
        others = [(self.since, f"Started within {self.since}")] if self.since and self.since not in SINCE else []
        return [*SINCE.items(), *others]

    @property
    def date_fields(self) -> list[tuple[str, str, str, str]]:
        """Label, name, value and type of the date inputs. A value that is not a plain date needs a text input."""
        return [
            (label, name, value or "", "date" if not value or re.fullmatch(_DAY, value) else "text")
            for label, name, value in (("Started from", "from", self.start), ("until", "to", self.end))
        ]

    def url(self, path: str) -> str:
        chosen = {
            "q": self.q,
            "namespace": self.namespace,
            "cluster": self.cluster,
            "failed": "1" if self.failed else None,
            "state": self.state,
            "owner": self.owner,
            "since": self.since,
            "from": self.start,
            "to": self.end,
            "sort": self.sort,
            "page": self.page,
        }
        query = urlencode({name: value for name, value in chosen.items() if value})
        return f"{path}?{query}" if query else path

    def with_state(self, state: SessionState | None) -> "SessionFilters":
        return msgspec.structs.replace(self, state=state, page=None)

    def toggle_failed(self) -> "SessionFilters":
        return msgspec.structs.replace(self, failed=not self.failed, page=None)

    def of_owner(self, owner: str) -> "SessionFilters":
        return msgspec.structs.replace(self, owner=owner, page=None)

    def with_page(self, page: str | None) -> "SessionFilters":
        return msgspec.structs.replace(self, page=page)

    def sorted_by(self, column: str) -> "SessionFilters":
        """Return the filters after a click on a column header: one order, the opposite one, then the default order.

        The first order is ascending, except for failures, for which it is descending.
        """
        next_sort = {column: f"-{column}", f"-{column}": None}
        return msgspec.structs.replace(self, sort=next_sort.get(self.sort or "", column), page=None)

    def aria_sort(self, column: str) -> str:
        """Return the value of a column's `aria-sort`. `failed` without a minus means descending."""
        orders = ("descending", "ascending") if column == "failed" else ("ascending", "descending")
        return dict(zip((column, f"-{column}"), orders, strict=True)).get(self.sort or "", "none")


def namespace_choices(namespaces: Iterable[str], selected: str | None) -> list[tuple[str, str]]:
    """Return all choices, and the selected namespace even if it has no sessions, so that the form keeps it."""
    return [(name, name) for name in sorted({*namespaces, *([selected] if selected else [])})]


def owner_text(kind: str | None, name: str | None) -> str:
    """Format an owner for people. Keys and URLs have `rayjob`, the Kubernetes kind is RayJob."""
    return f"{OWNERS.get(kind or '', kind or '')} {name or ''}".strip()


class FailureMarker(msgspec.Struct, kw_only=True):
    """Failures close together in time. `at_ms` is the time of the last one; `names` has the first names."""

    at_ms: int
    tasks: int = 0
    actors: int = 0
    jobs: int = 0
    names: list[str] = []


class SessionOverview(msgspec.Struct, frozen=True, kw_only=True):
    """Start, end and number of gaps of a session, and its failures over time."""

    state: SessionState
    started_ms: int
    last_ms: int
    gaps: int
    failures: list[FailureMarker]


class Link(msgspec.Struct, frozen=True):
    text: str
    url: str


class GapLocation(msgspec.Struct, frozen=True, kw_only=True):
    """The location of a gap: an object or a node, and details."""

    place: str
    detail: str


class GapGroup(msgspec.Struct, frozen=True, kw_only=True):
    """All gaps with the same code."""

    code: str
    summary: str
    meaning: str
    remedy: str
    loss: bool
    places: list[GapLocation]
    more_places: int = 0
    """Number of locations that are not listed."""


class DashboardVersions(Protocol):
    """The version of Ray's frontend that is shown, and the installed ones."""

    @property
    def chosen(self) -> str | None: ...
    @property
    def versions(self) -> list[str]: ...


class StateCounts(Protocol):
    """The number of tasks in each state over time."""

    @property
    def states(self) -> Mapping[str, Sequence[int]]: ...


class DiagnosisValues(Protocol):
    """The diagnosis of a session, for its page."""

    @property
    def verdict(self) -> object: ...
    @property
    def findings(self) -> Sequence[TimedFinding]: ...
    @property
    def states(self) -> StateCounts: ...
    @property
    def started_ms(self) -> int | None: ...
    @property
    def ended_ms(self) -> int | None: ...
    @property
    def provisional(self) -> bool: ...
