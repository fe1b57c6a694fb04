"""The parameters of lists of runs, as in their URLs."""

import re
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.datastructures import QueryParams

from rayhistory.errors import UsageError
from rayhistory.runs.run_groups import DEFAULT_SORT, SORTS, RunGroup

PAGE_SIZE = 50
KINDS = ("rayjob", "rayservice", "job", "metadata", "entrypoint", "cluster")
SINCE = {"24h": "Last 24 hours", "7d": "Last 7 days", "30d": "Last 30 days", "90d": "Last 90 days"}
_HOUR_MS = 3_600_000
_HOURS = {"h": 1, "d": 24}
_MAX_WORDS = 32
_MAX_PAGE = 10**6
_FLAGS = ("0", "1")


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
    """The choices of the namespace filter."""

    @property
    def active(self) -> bool:
        chosen = (self.q, self.namespace, self.owner, self.kind, self.since, self.failed, self.regressed)
        return any(chosen)

    @property
    def since_ms(self) -> int | None:
        match = re.fullmatch("([0-9]{1,5})([hd])", self.since or "")
        return int(match[1]) * _HOURS[match[2]] * _HOUR_MS if match else None

    @property
    def since_choices(self) -> list[tuple[str, str]]:
        others = [(self.since, f"Last {self.since}")] if self.since and self.since not in SINCE else []
        return [*SINCE.items(), *others]

    @property
    def namespace_choices(self) -> list[str]:
        return sorted({*self.namespaces, *([self.namespace] if self.namespace else [])})

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
        """Return the filters behind the buttons "failed" and "regressed"."""
        return msgspec.structs.replace(self, **{flag: not getattr(self, flag)}, page=1)

    def sorted_by(self, column: str) -> "RunFilters":
        """Return the filters behind a click on a column header: descending, then ascending, then the default order."""
        following = {f"-{column}": column, column: None}
        return msgspec.structs.replace(self, sort=following.get(self.sort or "", f"-{column}"), page=1)

    def order_of(self, column: str) -> str:
        """Return the value of `aria-sort`."""
        return {column: "ascending", f"-{column}": "descending"}.get(self.sort or DEFAULT_SORT, "none")

    def matches(self, group: RunGroup) -> bool:
        words = self.q.lower().split()
        text = f"{group.name} {group.namespace} {group.kind}".lower()
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
    """Parse the filters of a URL; an invalid value is an error, because ignoring it would show the wrong runs."""
    filters = RunFilters(
        q=params.get("q", "").strip(),
        namespace=params.get("namespace") or None,
        owner=params.get("owner", "").strip().lower() or None,
        kind=_one_of(params, "kind", KINDS),
        since=params.get("since") or None,
        failed=_one_of(params, "failed", _FLAGS) == "1",
        regressed=_one_of(params, "regressed", _FLAGS) == "1",
        sort=_one_of(params, "sort", SORTS),
        page=_page(params.get("page")),
    )
    if len(filters.q.split()) > _MAX_WORDS:
        raise UsageError(f"invalid q: use at most {_MAX_WORDS} words")
    if filters.since and filters.since_ms is None:
        raise UsageError(f"invalid since {filters.since!r}: use a number of hours or days (24h, 7d)")
    if filters.owner and filters.owner.partition("/")[0] not in ("rayjob", "rayservice"):
        raise UsageError(
            f"invalid owner {filters.owner!r}: use rayjob, rayservice, or a kind and a name (rayjob/nightly)"
        )
    return filters


def _one_of(params: QueryParams, name: str, choices: tuple[str, ...]) -> str | None:
    given = params.get(name) or None
    if given is not None and given not in choices:
        raise UsageError(f"invalid {name} {given!r}: use one of {', '.join(choices)}")
    return given


def _page(text: str | None) -> int:
    if not text:
        return 1
    if not re.fullmatch("[0-9]{1,7}", text) or not 0 < int(text) <= _MAX_PAGE:
        raise UsageError(f"invalid page {text[:20]!r}: use a number from 1")
    return int(text)
