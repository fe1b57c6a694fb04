"""Comparison of two responses to one request, field by field."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from recorded.dashboard_requests import DashboardRequest

ABSENT = "<absent>"

_IDENTITIES = (
    ("task_id", "attempt_number"),
    ("key",),
    ("eventId",),
    ("actor_id",),
    ("worker_id",),
    ("workerId",),
    ("placement_group_id",),
    ("node_id",),
    ("submission_id", "job_id"),
    ("state", "created_ms"),
    ("pid", "cmdline"),
)
_SINGLE_VALUES = {"state_counts"}
"""Objects that are compared as one value."""

Fields = dict[str, Any]


class Difference(msgspec.Struct, frozen=True):
    """A field whose value differs between a live cluster and its history."""

    request: str
    path: str
    live: Any
    dead: Any
    live_fields: Fields
    """All fields of the live response."""
    dead_fields: Fields
    """All fields of the response from history."""

    def live_state(self) -> Any:
        """Return the live state of the task, actor, node or job that the field belongs to."""
        path = self.path
        while path:
            path = path.rpartition(".")[0]
            for name in ("state", "status", "is_alive"):
                if (found := f"{path}.{name}") in self.live_fields and found != self.path:
                    return self.live_fields[found]
        return None

    def __repr__(self) -> str:
        return f"{self.request} {self.path}: live {self.live!r:.120}, dead {self.dead!r:.120}"


class Comparison(msgspec.Struct):
    total: int
    equal: int
    differences: list[Difference]


def compare(request: DashboardRequest, live: tuple[int, str], dead: tuple[int, str]) -> Comparison:
    live_fields, dead_fields = fields(request, *live), fields(request, *dead)
    if live[0] >= 400 > dead[0]:  # one difference: there is nothing to compare with the fields of a refusal
        dead_fields = {path: value for path, value in dead_fields.items() if path in live_fields}
    differences = [
        Difference(request.name, path, one, other, live_fields, dead_fields)
        for path in {**live_fields, **dead_fields}
        if not _same(one := live_fields.get(path, ABSENT), other := dead_fields.get(path, ABSENT))
    ]
    total = len(live_fields.keys() | dead_fields.keys())
    return Comparison(total, total - len(differences), differences)


def _same(one: Any, other: Any) -> bool:
    """Compare as JSON does: 1 equals 1.0, and true is not 1."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def fields(request: DashboardRequest, status: int, text: str) -> Fields:
    """Return every value of a response by its path; rows are named by their ids, not by their positions."""
    found: Fields = {".status code": status}
    if "/logs/file" in request.path or not text.startswith(("{", "[")):
        found[".text"] = text
    elif "/timeline" in request.path:
        found.update(_leaves("", _timeline(msgspec.json.decode(text))))
    else:
        found.update(_leaves("", msgspec.json.decode(text)))
    return found


def _timeline(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return spans by task, attempt and category; workers by name, because Ray numbers them by appearance."""
    workers = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["ph"] == "M"}
    seen: Counter[str] = Counter()
    spans: dict[str, Any] = {}
    for event in events:
        if event["ph"] == "X":
            name = "#".join(
                str(each) for each in (event["args"]["task_id"], event["args"]["attempt_number"], event["cat"])
            )
            seen[name] += 1
            spans[f"{name}#{seen[name]}"] = event | {"tid": workers[event["pid"], event["tid"]]}
    return {"spans": spans | {"order": tuple(spans)}, "workers": {name: name for name in workers.values()}}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value and path.rpartition(".")[2] not in _SINGLE_VALUES:
        for name, item in value.items():
            yield from _leaves(f"{path}.{name}", item)
    elif isinstance(value, list) and value:
        yield from _items(path, value)
    else:
        yield path, value


def _items(path: str, items: list[Any]) -> Iterator[tuple[str, Any]]:
    while len(items) > 8 and items[-1] == items[-8] == "":
        items = items[:-1]  # Ray's command lines end in thousands of empty strings; the collector removes them
    names = [_name(item, position) for position, item in enumerate(items)]
    if names != [str(position) for position in range(len(items))]:
        yield f"{path}.order", tuple(names)
    for name, item in zip(names, items, strict=True):
        yield from _leaves(f"{path}.{re.sub(r'[.]', '·', name)}", item)


def _name(item: Any, position: int) -> str:
    """Name rows by their ids, strings by themselves, and everything else by position."""
    if isinstance(item, str) and item:
        return item
    if isinstance(item, Mapping):
        for names in _IDENTITIES:
            if all(name in item for name in names):
                shown = names if names[0] in ("task_id", "submission_id") else names[:1]
                return "#".join(str(item[name]) for name in shown)
        node = (item.get("raylet") or {}).get("nodeId")
        if node:
            return str(node)
    return str(position)
