"""The parameters of lists of runs, parsed from a URL."""

from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.datastructures import QueryParams

from rayhistory.runs.run_groups import DEFAULT_SORT, SORTS, RunGroup
from rayhistory.server.http.list_params import (
    age_ms,
    parse_choice,
    parse_flag,
    parse_owner,
    parse_page,
    parse_since,
    parse_words,
)
from rayhistory.web.models import namespace_choices

PAGE_SIZE = 50
KINDS = ("rayjob", "rayservice", "job", "metadata", "entrypoint", "cluster")
SINCE = {"24h": "Last 24 hours", "7d": "Last 7 days", "30d": "Last 30 days", "90d": "Last 90 days"}
_OWNERS = ("rayjob", "rayservice")


class RunFilters(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of a list of runs."""

    q: str = ""
    namespace: str | None = None
    owner: str | None = None
    kind: str | None = None
    since: str | None = None
    failed: bool = False
    """Only groups whose newest run failed."""
    regressed: bool = False
    sort: str | None = None
    page: int = 1
    namespaces: list[str] = []
    """The namespaces that the filter by namespace offers."""

    @property
    def active(self) -> bool:
        chosen = (self.q, self.namespace, self.owner, self.kind, self.since, self.failed, self.regressed)
        return any(chosen)

    @property
    def since_ms(self) -> int | None:
        return age_ms(self.since) if self.since else None

    @property
    def since_choices(self) -> list[tuple[str, str]]:
        others = [(self.since, f"Last {self.since}")] if self.since and self.since not in SINCE else []
        return [*SINCE.items(), *others]

    @property
    def namespace_choices(self) -> list[tuple[str, str]]:
        return namespace_choices(self.namespaces, self.namespace)

    def url(self, path: str) -> str:
        chosen: dict[str, Any] = {
            "q": self.q, "namespace": self.namespace, "owner": self.owner, "kind": self.kind, "since": self.since,
            "failed": "1" if self.failed else None, "regressed": "1" if self.regressed else None, "sort": self.sort,
            "page": self.page if self.page > 1 else None,
        }  # fmt: skip
        query = urlencode({name: value for name, value in chosen.items() if value})
        return f"{path}?{query}" if query else path

    def with_page(self, page: int) -> "RunFilters":
        return msgspec.structs.replace(self, page=page)

    def toggled(self, flag: str) -> "RunFilters":
        """Return the filters after a click on the button "failed" or "regressed"."""
        return msgspec.structs.replace(self, **{flag: not getattr(self, flag)}, page=1)

    def sorted_by(self, column: str) -> "RunFilters":
        """Return the filters after a click on a column header: descending, then ascending, then the default order."""
        following = {f"-{column}": column, column: None}
        return msgspec.structs.replace(self, sort=following.get(self.sort or "", f"-{column}"), page=1)

    def aria_sort(self, column: str) -> str:
        """Return the value of a column's `aria-sort`."""
        return {column: "ascending", f"-{column}": "descending"}.get(self.sort or DEFAULT_SORT, "none")

    def matches(self, group: RunGroup) -> bool:
        words = self.q.lower().split()
        text = f"{group.name} {group.title} {group.namespace} {group.kind}".lower()
        kind, _, name = (self.owner or "").partition("/")
        return (
            all(word in text for word in words)
            and self.namespace in (None, group.namespace)
            and self.kind in (None, group.kind)
            and (not kind or (group.kind == kind and name in ("", group.name)))
            and (not self.failed or group.last[0].status == "FAILED")
            and (not self.regressed or group.regression is not None)
        )


def parse_run_filters(params: QueryParams) -> RunFilters:
    return RunFilters(
        q=parse_words(params),
        namespace=params.get("namespace") or None,
        owner=parse_owner(params, _OWNERS),
        kind=parse_choice(params, "kind", KINDS),
        since=parse_since(params),
        failed=parse_flag(params, "failed"),
        regressed=parse_flag(params, "regressed"),
        sort=parse_choice(params, "sort", SORTS),
        page=parse_page(params),
    )
