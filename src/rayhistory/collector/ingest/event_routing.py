"""Where events belong: their session, and their category by KubeRay's rules. Nothing else of them is read here.

A body is decoded twice, each time by one call: once into the bytes of its elements, once into typed headers that
skip everything but a few fields. What does not fit (numbers for strings, and the like) is read again, one by one,
slowly and tolerantly.
"""

import dataclasses
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from rayhistory import ids
from rayhistory.collector.block import Block
from rayhistory.layout.keys import JOB_EVENTS, NODE_EVENTS
from rayhistory.layout.session import is_safe_component, is_session_name

# In KubeRay's order; then the names of Ray 2.49 and 2.50, which KubeRay does not know.
_WITH_JOB = (
    "driverJobDefinitionEvent",
    "driverJobLifecycleEvent",
    "taskDefinitionEvent",
    "taskLifecycleEvent",
    "taskProfileEvents",
    "actorTaskDefinitionEvent",
    "actorDefinitionEvent",
    "taskExecutionEvent",
    "driverJobExecutionEvent",
)
_NODE_TYPES = {"NODE_LIFECYCLE_EVENT", "NODE_DEFINITION_EVENT"}
_LOOK_CLOSER = "?"
_COMMA = ord(",")
_MOST_SESSIONS = 16  # in one body: one, or two when Ray has just begun a new one
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_LARGEST_WITH_DEPTHS = 2 << 20
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]++|[\]}]++|,', re.DOTALL)


class RoutingError(Exception):
    """Carries the reason, in one or two words."""


class Route(NamedTuple):
    session: str
    category: str
    node: str | None
    """The node that sent it, where the event tells (from Ray 2.54)."""


@dataclasses.dataclass
class Sorted:
    """A body, taken apart."""

    events: int
    """How many there were, good and bad."""
    blocks: dict[str, list[Block]]
    nodes: dict[str, str]
    """The sender of a session's events."""
    broken: list[tuple[str, bytes]]


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def _headers(spelling: Callable[[str], str]) -> Callable[[bytes], Any]:
    def text(name: str) -> Any:
        return str | None, msgspec.field(default=None, name=spelling(name))

    nested = msgspec.defstruct("_Nested", [("job", *text("jobId"))], gc=False)
    header = msgspec.defstruct(
        "_Header",
        [
            ("session", *text("sessionName")),
            ("type", *text("eventType")),
            ("source", *text("sourceType")),
            ("node", *text("nodeId")),
            *[
                (f"nested{n}", nested | None, msgspec.field(default=None, name=spelling(name)))
                for n, name in enumerate(_WITH_JOB)
            ],
        ],
        gc=False,
    )
    return msgspec.json.Decoder(list[header]).decode  # type: ignore[valid-type]


_camel_headers, _snake_headers = _headers(str), _headers(_snake)
_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_one = msgspec.json.Decoder(msgspec.Raw).decode


def sort(body: bytes) -> Sorted:
    """Raises RoutingError when the body is not JSON at all."""
    routed = _Routed()
    try:
        events, body = _one_per_line(body)
        headers = _all_headers(body) if body.isascii() else None
    except RecursionError:
        events, headers = _elements(body), None
    except _NOT_JSON:
        raise RoutingError("not JSON") from None
    if headers is None:
        for event in events:
            routed.add_slowly(event)
    else:
        routed.add(events, headers)
    return routed.result(len(events))


def _one_per_line(body: bytes) -> tuple[list[Any], bytes]:
    """The elements of an array, or the one object, without line breaks; and all of them as an array."""
    try:
        events: list[Any] = _array(body)
    except msgspec.ValidationError:
        events = [_one(body)]
        body = b"[%b]" % bytes(events[0])
    if b"\n" in body or b"\r" in body:
        events = [msgspec.json.format(bytes(event), indent=-1) for event in events]
        body = b"[%b]" % b",".join(events)
    return events, body


def _elements(body: bytes) -> list[bytes]:
    """The elements of an array in which one is too deep to be read, told apart by brackets and commas alone."""
    begin = body.find(b"[")
    if len(body) > _LARGEST_WITH_DEPTHS or begin < 0 or body[:begin].strip():
        raise RoutingError("not JSON")
    elements: list[bytes] = []
    depth, start = 0, begin + 1
    for token in _TOKEN.finditer(body, begin):
        kind = body[token.start()]
        if kind in b"[{":
            depth += len(token[0])
        elif kind in b"]}":
            depth -= len(token[0])
        if depth == 0 or (depth == 1 and kind == _COMMA):
            element = body[start : token.end() - 1].strip()
            elements.append(element.replace(b"\n", b" ").replace(b"\r", b" "))  # in JSON, breaks are between tokens
            start = token.end()
        if depth <= 0:
            break
    if depth or body[start:].strip():
        raise RoutingError("not JSON")
    return elements


def _all_headers(body: bytes) -> list[Any] | None:
    """None when some element does not fit."""
    try:
        headers = _camel_headers(body)
        if headers and headers[0].session is None:
            headers = _snake_headers(body)
    except _NOT_JSON:
        return None
    return list(headers)


class _Routed:
    def __init__(self) -> None:
        self._found: dict[str, dict[str, list[Any]]] = {}
        self._nodes: dict[str, str] = {}
        self._broken: list[tuple[str, bytes]] = []

    def add(self, events: list[Any], headers: list[Any]) -> None:
        """This loop is what an event costs."""
        groups: dict[tuple[str | None, str | None], list[Any]] = {}
        senders: dict[tuple[str | None, str | None], Any] = {}
        for event, each in zip(events, headers, strict=True):
            nested = (
                each.nested0 or each.nested1 or each.nested2 or each.nested3 or each.nested4
                or each.nested5 or each.nested6 or each.nested7 or each.nested8
            )  # fmt: skip
            job = None if nested is None or each.type in _NODE_TYPES else nested.job or _LOOK_CLOSER
            key = (each.session, job)
            if key in groups:
                groups[key].append(event)
            else:
                groups[key] = [event]
                senders[key] = each
        for (session, job), group in groups.items():
            if session is None or job == _LOOK_CLOSER:
                for event in group:
                    self.add_slowly(event)
                continue
            sender = senders[session, job]
            try:
                route = _checked(session, job, sender.source, sender.node)
            except RoutingError as reason:
                self._broken += [(str(reason), bytes(event)) for event in group]
            else:
                self._take(route, group)

    def add_slowly(self, event: Any) -> None:
        data = bytes(event)
        try:
            if not data.isascii():
                data.decode()
            self._take(route(data), [data])
        except RoutingError as reason:
            self._broken.append((str(reason), data))
        except UnicodeDecodeError:
            self._broken.append(("not UTF-8", data))

    def _take(self, route: Route, events: list[Any]) -> None:
        if route.session not in self._found and len(self._found) >= _MOST_SESSIONS:
            self._broken += [("too many sessions", bytes(event)) for event in events]
            return
        self._found.setdefault(route.session, {}).setdefault(route.category, []).extend(events)
        if route.node:
            self._nodes[route.session] = route.node

    def result(self, events: int) -> Sorted:
        blocks: dict[str, list[Block]] = {}
        for session, categories in self._found.items():
            for category, lines in categories.items():
                lines.append(b"")
                blocks.setdefault(session, []).append(Block(category, len(lines) - 1, b"\n".join(lines)))
        return Sorted(events, blocks, self._nodes, self._broken)


def route(event: bytes) -> Route:
    """Raises RoutingError for what is not an event of a session."""
    try:
        fields = msgspec.json.decode(event)
    except _NOT_JSON:
        raise RoutingError("not JSON") from None
    if not isinstance(fields, dict):
        raise RoutingError("not an object")

    def either(of: dict[str, Any], name: str) -> Any:
        return of.get(name) or of.get(_snake(name))

    job = None
    if str(either(fields, "eventType")) not in _NODE_TYPES:
        nested = [either(fields, name) for name in _WITH_JOB]
        job = next((found for each in nested if isinstance(each, dict) and (found := either(each, "jobId"))), None)
    return _checked(
        either(fields, "sessionName"),
        None if job is None else str(job),
        either(fields, "sourceType"),
        either(fields, "nodeId"),
    )


def _checked(session: Any, job: str | None, source: Any, node: Any) -> Route:
    if not session:
        raise RoutingError("no session")
    if not isinstance(session, str) or not _is_session(session):
        raise RoutingError("bad session")
    # What the head's GCS sends is about any node; a worker process tells of its own.
    own = _node_hex(node) if source == "CORE_WORKER" and isinstance(node, str) else None
    return Route(session, _category(job) if job else NODE_EVENTS, own)


@lru_cache(maxsize=64)
def _is_session(name: str) -> bool:
    return is_session_name(name)


@lru_cache(maxsize=64)
def _node_hex(node: str) -> str | None:
    return ids.to_hex(node, ids.NODE)


@lru_cache(maxsize=4096)
def _category(job: str) -> str:
    name = ids.any_to_hex(job)
    return f"{JOB_EVENTS}/{name}" if is_safe_component(name) else NODE_EVENTS
