"""Two answers to one question, field by field: what is equal, what may differ and why, and what may not."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from recorded.questions import Question

ABSENT = "<absent>"

_IDENTITIES = (
    ("task_id", "attempt_number"),
    ("key",),
    ("eventId",),
    ("actor_id",),
    ("worker_id",),
    ("placement_group_id",),
    ("node_id",),
    ("submission_id", "job_id"),
    ("state", "created_ms"),
    ("pid", "cmdline"),
)
_WHOLE = {"state_counts"}
"""What is one value, though it is written as an object."""

Fields = dict[str, Any]


class Difference(msgspec.Struct, frozen=True):
    """A field that a live cluster and its history do not agree on."""

    question: str
    path: str
    live: Any
    dead: Any
    answer: Fields
    """Everything that the live one said."""
    history: Fields
    """Everything that the history says."""

    def before(self) -> Any:
        """What the live answer says of the state of the thing that this field is part of."""
        path = self.path
        while path:
            path = path.rpartition(".")[0]
            for name in ("state", "status", "is_alive"):
                if (found := f"{path}.{name}") in self.answer and found != self.path:
                    return self.answer[found]
        return None

    def __repr__(self) -> str:
        return f"{self.question} {self.path}: live {self.live!r:.120}, dead {self.dead!r:.120}"


class Comparison(msgspec.Struct):
    total: int
    equal: int
    differences: list[Difference]


def compare(question: Question, live: tuple[int, str], dead: tuple[int, str]) -> Comparison:
    said, says = fields(question, *live), fields(question, *dead)
    differences = [
        Difference(question.name, path, one, other, said, says)
        for path in {**said, **says}
        if not _same(one := said.get(path, ABSENT), other := says.get(path, ABSENT))
    ]
    total = len(said.keys() | says.keys())
    return Comparison(total, total - len(differences), differences)


def _same(one: Any, other: Any) -> bool:
    """JSON knows numbers, and 1 is 1.0; but true is not 1."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def fields(question: Question, status: int, text: str) -> Fields:
    """Every value in an answer, by its path; rows by what they are about, not by where they stand."""
    found: Fields = {".status code": status}
    if "/logs/file" in question.path or not text.startswith(("{", "[")):
        found[".text"] = text
    elif "/timeline" in question.path:
        found.update(_leaves("", _timeline(msgspec.json.decode(text))))
    else:
        found.update(_leaves("", msgspec.json.decode(text)))
    return found


def _timeline(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Spans by what they are of; workers have names here, in place of numbers in the order of appearance."""
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
    if isinstance(value, Mapping) and value and path.rpartition(".")[2] not in _WHOLE:
        for name, item in value.items():
            yield from _leaves(f"{path}.{name}", item)
    elif isinstance(value, list) and value:
        yield from _items(path, value)
    else:
        yield path, value


def _items(path: str, items: list[Any]) -> Iterator[tuple[str, Any]]:
    while len(items) > 8 and items[-1] == items[-8] == "":
        items = items[:-1]  # of Ray's command lines, which end in thousands of these; a collector leaves them out
    names = [_name(item, place) for place, item in enumerate(items)]
    if names != [str(place) for place in range(len(items))]:
        yield f"{path}.order", tuple(names)
    for name, item in zip(names, items, strict=True):
        yield from _leaves(f"{path}.{re.sub(r'[.]', '·', name)}", item)


def _name(item: Any, place: int) -> str:
    """Rows are told apart by their ids, names by themselves, and everything else by its place."""
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
    return str(place)
