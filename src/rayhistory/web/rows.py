"""What the pages show, as plain values: whoever knows the sessions fills these in.

The `.json` of a page can be made of the same values, so that both always say the same.
"""

from typing import Literal, Protocol, get_args
from urllib.parse import urlencode

import msgspec

SessionState = Literal["running", "ended", "vanished"]
SESSION_STATES: tuple[SessionState, ...] = get_args(SessionState)


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
    """One session on the home page; `counts` is None until the session has an index."""

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

    def duration_ms(self, now_ms: int) -> int | None:
        """Until now only while running: a session that ended at an unknown time has no known duration."""
        end_ms = now_ms if self.state == "running" else self.ended_ms
        if self.started_ms is None or end_ms is None or end_ms < self.started_ms:
            return None
        return end_ms - self.started_ms


class HomeFilters(msgspec.Struct, frozen=True, kw_only=True):
    """Which view of the sessions this is; `page` is the caller's own cursor, None for the first page."""

    q: str = ""
    namespace: str | None = None
    state: SessionState | None = None
    page: str | None = None
    namespaces: list[str] = []

    @property
    def active(self) -> bool:
        return bool(self.q or self.namespace or self.state)

    @property
    def namespace_choices(self) -> list[str]:
        """The chosen namespace stays a choice even with no session in it: submitting the form keeps it."""
        return sorted({*self.namespaces, *([self.namespace] if self.namespace else [])})

    def url(self, path: str) -> str:
        chosen = {"q": self.q, "namespace": self.namespace, "state": self.state, "page": self.page}
        query = urlencode({name: value for name, value in chosen.items() if value})
        return f"{path}?{query}" if query else path

    def with_state(self, state: SessionState | None) -> "HomeFilters":
        return msgspec.structs.replace(self, state=state, page=None)

    def with_page(self, page: str | None) -> "HomeFilters":
        return msgspec.structs.replace(self, page=page)
