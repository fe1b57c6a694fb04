"""What the pages show, as plain values: whoever knows the sessions fills these in.

The `.json` of a page can be made of the same values, so that both always say the same.
"""

import re
from typing import Literal, Protocol, get_args
from urllib.parse import urlencode

import msgspec

SessionState = Literal["running", "ended", "vanished"]
SESSION_STATES: tuple[SessionState, ...] = get_args(SessionState)
OWNERS = {"rayjob": "RayJob", "rayservice": "RayService", "none": "No owner"}
SINCE = {"1h": "Last hour", "24h": "Last 24 hours", "7d": "Last 7 days", "30d": "Last 30 days"}
SORTS = ("started", "-started", "cluster", "-cluster", "namespace", "-namespace")
_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"


class NamedSession(Protocol):
    """Anything that says which session it is."""

    @property
    def namespace(self) -> str: ...
    @property
    def cluster(self) -> str: ...
    @property
    def session(self) -> str: ...


class SessionCounts(msgspec.Struct, frozen=True, kw_only=True):
    jobs: dict[str, int]
    tasks: int
    failed_tasks: int
    actors: int
    nodes: int
    gaps: int


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One session on the home page; `counts` is None until the session has an index, or while that cannot be read."""

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
    counts: SessionCounts | None = None
    unreadable: bool = False
    """The store does not tell now whether there is an index."""
    dashboard: str | None = None
    """Which version of Ray's frontend its address shows."""

    @property
    def owner(self) -> str | None:
        """As it stands in an address."""
        return f"{self.owner_kind}/{self.owner_name}" if self.owner_kind and self.owner_name else None

    def duration_ms(self, now_ms: int) -> int | None:
        """Until now only while running: a session that ended at an unknown time has no known duration."""
        end_ms = now_ms if self.state == "running" else self.ended_ms
        if self.started_ms is None or end_ms is None or end_ms < self.started_ms:
            return None
        return end_ms - self.started_ms


class HomeFilters(msgspec.Struct, frozen=True, kw_only=True):
    """Which view of the sessions this is: what the visitor chose, as it stands in the address.

    `page` is the caller's own cursor, None for the first page; `namespaces` are what there is to choose from.
    """

    q: str = ""
    namespace: str | None = None
    state: SessionState | None = None
    owner: str | None = None
    """A kind, or a kind and a name: `rayjob/nightly`; `none` for clusters that nothing owns."""
    since: str | None = None
    """Started within the last `24h`, or `7d`."""
    start: str | None = None
    end: str | None = None
    """Started from this day on, and until that."""
    sort: str | None = None
    page: str | None = None
    namespaces: list[str] = []

    @property
    def active(self) -> bool:
        return bool(self.q or self.namespace or self.state or self.owner or self.since or self.start or self.end)

    @property
    def namespace_choices(self) -> list[str]:
        """The chosen namespace stays a choice even with no session in it: submitting the form keeps it."""
        return sorted({*self.namespaces, *([self.namespace] if self.namespace else [])})

    @property
    def owner_choices(self) -> list[tuple[str, str]]:
        """A single owner is a choice while it is chosen: links lead to it."""
        single = [(self.owner, owner_text(*self.owner.split("/", 1)))] if self.owner and "/" in self.owner else []
        return [*OWNERS.items(), *single]

    @property
    def since_choices(self) -> list[tuple[str, str]]:
        others = [(self.since, f"Started within {self.since}")] if self.since and self.since not in SINCE else []
        return [*SINCE.items(), *others]

    @property
    def date_fields(self) -> list[tuple[str, str, str, str]]:
        """Label, name, value and type: only a day fits into a field for dates, and what does not fit would be lost."""
        return [
            (label, name, value or "", "date" if not value or re.fullmatch(_DAY, value) else "text")
            for label, name, value in (("Started from", "from", self.start), ("until", "to", self.end))
        ]

    def url(self, path: str) -> str:
        chosen = {
            "q": self.q,
            "namespace": self.namespace,
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

    def with_state(self, state: SessionState | None) -> "HomeFilters":
        return msgspec.structs.replace(self, state=state, page=None)

    def of_owner(self, owner: str) -> "HomeFilters":
        return msgspec.structs.replace(self, owner=owner, page=None)

    def with_page(self, page: str | None) -> "HomeFilters":
        return msgspec.structs.replace(self, page=page)

    def sorted_by(self, column: str) -> "HomeFilters":
        """What a click on the column's head leads to: its order, then the reverse, then the usual order."""
        following = {column: f"-{column}", f"-{column}": None}
        return msgspec.structs.replace(self, sort=following.get(self.sort or "", column), page=None)

    def order_of(self, column: str) -> str:
        """As `aria-sort` says it."""
        return {column: "ascending", f"-{column}": "descending"}.get(self.sort or "", "none")


def owner_text(kind: str | None, name: str | None) -> str:
    """`rayjob` is how keys and addresses spell it; people write RayJob."""
    return f"{OWNERS.get(kind or '', kind or '')} {name or ''}".strip()


class Mark(msgspec.Struct, kw_only=True):
    """What failed at about one time, and when the last of it did."""

    at_ms: int
    tasks: int = 0
    actors: int = 0
    jobs: int = 0


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """From when to when a session is known, how much of it is missing, and when something failed in it."""

    state: SessionState
    started_ms: int
    last_ms: int
    gaps: int
    failures: list[Mark]


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is missing from a session, in how many objects, and how often in all."""

    kind: str
    detail: str
    count: int
    sources: list[str]


class Dashboards(Protocol):
    """Which version of Ray's frontend is shown, and which others there are."""

    @property
    def chosen(self) -> str | None: ...
    @property
    def versions(self) -> list[str]: ...
