"""Route events to their session and category, by KubeRay's rules, without decoding them completely.

The fast path decodes a body twice: into the bytes of each event, and into typed headers with a few fields. Events that
do not fit the header types are decoded one by one, without types.
"""

import dataclasses
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, get_args

import msgspec

from rayhistory import ids
from rayhistory.collector.spool.block import Block
from rayhistory.events import event_types
from rayhistory.sessions.kuberay_keys import JOB_EVENTS, NODE_EVENTS
from rayhistory.sessions.ref import is_safe_component, is_session_name

_NODE_EVENT_TYPES = {"NODE_LIFECYCLE_EVENT", "NODE_DEFINITION_EVENT"}
_NODE_PAYLOADS = {"worker_lifecycle_event"}
"""Payloads that have a job id, but that KubeRay stores as node events."""
_SLOW_PATH = "?"
_COMMA = ord(",")
_MAX_SESSIONS_PER_BODY = 16  # normally one, or two right after Ray has started a new session
_INVALID_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_MAX_BYTES_TO_SPLIT = 2 << 20
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]++|[\]}]++|,', re.DOTALL)

_camel = {field.name: field.encode_name for field in msgspec.structs.fields(event_types.Event)} | {"job_id": "jobId"}
"""The camelCase name of each field. If Ray is set to preserve proto names, it sends the snake_case name."""


def _carries_job_id(payload: Any) -> bool:
    return any("job_id" in getattr(kind, "__struct_fields__", ()) for kind in get_args(payload))


JOB_PAYLOADS = tuple(
    field.name
    for field in msgspec.structs.fields(event_types.Event)
    if _carries_job_id(field.type) and field.name not in _NODE_PAYLOADS
)
"""Event fields whose value contains the job id that selects the category."""


class RoutingError(Exception):
    """A body or event that cannot be routed. The message is the reason code for the quarantine."""


class EventRoute(NamedTuple):
    session: str
    category: str
    node: str | None
    """The node that sent the event, if the event has it (Ray 2.54 and later)."""


@dataclasses.dataclass
class RoutedBatch:
    """The events of one request body, grouped by session and category."""

    event_count: int
    """Number of events in the body, including malformed ones."""
    blocks: dict[str, list[Block]]
    nodes: dict[str, str]
    """The node that sent the events of each session, if it is known."""
    malformed: list[tuple[str, bytes]]
    """Events for the quarantine: a reason code and the bytes of each."""


def _header_decoder(spelling: Callable[[str], str]) -> Callable[[bytes], Any]:
    def text(name: str) -> Any:
        return name, str | None, msgspec.field(default=None, name=spelling(name))

    payload = msgspec.defstruct("_Payload", [text("job_id")], gc=False)
    header = msgspec.defstruct(
        "_Header",
        [
            *map(text, ("session_name", "event_type", "source_type", "node_id")),
            *((name, payload | None, msgspec.field(default=None, name=spelling(name))) for name in JOB_PAYLOADS),
        ],
        gc=False,
    )
    return msgspec.json.Decoder(list[header]).decode  # type: ignore[valid-type]


_decode_camel_headers, _decode_snake_headers = _header_decoder(_camel.__getitem__), _header_decoder(str)
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_one = msgspec.json.Decoder(msgspec.Raw).decode

# Generated, because this runs for every event: a chain of attributes is several times faster than a loop over names.
_job_payloads: Callable[[list[Any]], list[Any]] = eval(  # noqa: S307 - made of field names of our own types
    f"lambda headers: [{' or '.join(f'header.{name}' for name in JOB_PAYLOADS)} for header in headers]"
)


def route_batch(body: bytes) -> RoutedBatch:
    """Route all events of a request body; raise RoutingError if the body is not JSON."""
    router = _Router()
    try:
        events, body = _one_per_line(body)
        headers = _decode_headers(body) if body.isascii() else None
    except RecursionError:
        events, headers = _split_elements(body), None
    except _INVALID_JSON:
        raise RoutingError("not_json") from None
    if headers is None:
        for event in events:
            router.add_slowly(event)
    else:
        router.add(events, headers)
    return router.result(len(events))


def _one_per_line(body: bytes) -> tuple[list[Any], bytes]:
    """Return the events of an array or a single object, one per line, and the same events as an array."""
    try:
        events: list[Any] = _decode_array(body)
    except msgspec.ValidationError:
        events = [_decode_one(body)]
        body = b"[%b]" % bytes(events[0])
    if b"\n" in body or b"\r" in body:
        events = [msgspec.json.format(bytes(event), indent=-1) for event in events]
        body = b"[%b]" % b",".join(events)
    return events, body


def _split_elements(body: bytes) -> list[bytes]:
    """Split an array at brackets and commas only, for bodies that are nested too deeply to decode."""
    begin = body.find(b"[")
    if len(body) > _MAX_BYTES_TO_SPLIT or begin < 0 or body[:begin].strip():
        raise RoutingError("not_json")
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
            # Line breaks in JSON are only valid between tokens, so they can become spaces.
            elements.append(element.replace(b"\n", b" ").replace(b"\r", b" "))
            start = token.end()
        if depth <= 0:
            break
    if depth or body[start:].strip():
        raise RoutingError("not_json")
    return elements


def _decode_headers(body: bytes) -> list[Any] | None:
    """Decode the headers of all events. Return None if one does not fit the header type."""
    try:
        headers = _decode_camel_headers(body)
        if headers and headers[0].session_name is None:
            headers = _decode_snake_headers(body)
    except _INVALID_JSON:
        return None
    return list(headers)


class _Router:
    """Collects the events of one body by session and category."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, list[Any]]] = {}
        self._nodes: dict[str, str] = {}
        self._malformed: list[tuple[str, bytes]] = []

    def add(self, events: list[Any], headers: list[Any]) -> None:
        """Route events by their headers. This loop dominates the cost per event."""
        groups: dict[tuple[str | None, str | None], list[Any]] = {}
        first_headers: dict[tuple[str | None, str | None], Any] = {}
        for event, header, payload in zip(events, headers, _job_payloads(headers), strict=True):
            is_node_event = payload is None or header.event_type in _NODE_EVENT_TYPES
            job = None if is_node_event else payload.job_id or _SLOW_PATH
            key = (header.session_name, job)
            if key in groups:
                groups[key].append(event)
            else:
                groups[key] = [event]
                first_headers[key] = header
        for key, group in groups.items():
            session, job = key
            if session is None or job == _SLOW_PATH:
                for event in group:
                    self.add_slowly(event)
                continue
            first = first_headers[key]
            try:
                route = _make_route(session, job, first.source_type, first.node_id)
            except RoutingError as reason:
                self._malformed += [(str(reason), bytes(event)) for event in group]
            else:
                self._take(route, group)

    def add_slowly(self, event: Any) -> None:
        """Route one event by decoding all of it."""
        data = bytes(event)
        try:
            if not data.isascii():
                data.decode()
            self._take(route_event(data), [data])
        except RoutingError as reason:
            self._malformed.append((str(reason), data))
        except UnicodeDecodeError:
            self._malformed.append(("not_utf8", data))

    def _take(self, route: EventRoute, events: list[Any]) -> None:
        if route.session not in self._lines and len(self._lines) >= _MAX_SESSIONS_PER_BODY:
            self._malformed += [("too_many_sessions", bytes(event)) for event in events]
            return
        self._lines.setdefault(route.session, {}).setdefault(route.category, []).extend(events)
        if route.node:
            self._nodes[route.session] = route.node

    def result(self, event_count: int) -> RoutedBatch:
        blocks: dict[str, list[Block]] = {}
        for session, categories in self._lines.items():
            for category, lines in categories.items():
                lines.append(b"")
                blocks.setdefault(session, []).append(Block(category, len(lines) - 1, b"\n".join(lines)))
        return RoutedBatch(event_count, blocks, self._nodes, self._malformed)


def route_event(event: bytes) -> EventRoute:
    """Route one event of any shape; raise RoutingError if it is not an event of a session."""
    try:
        fields = msgspec.json.decode(event)
    except _INVALID_JSON:
        raise RoutingError("not_json") from None
    if not isinstance(fields, dict):
        raise RoutingError("not_an_object")

    def get(of: dict[str, Any], name: str) -> Any:
        return of.get(_camel[name]) or of.get(name)

    job = None
    if str(get(fields, "event_type")) not in _NODE_EVENT_TYPES:
        payloads = [get(fields, name) for name in JOB_PAYLOADS]
        job = next((found for each in payloads if isinstance(each, dict) and (found := get(each, "job_id"))), None)
    return _make_route(
        get(fields, "session_name"),
        None if job is None else str(job),
        get(fields, "source_type"),
        get(fields, "node_id"),
    )


def _make_route(session: Any, job: str | None, source: Any, node: Any) -> EventRoute:
    if not session:
        raise RoutingError("no_session")
    if not isinstance(session, str) or not _is_session_name(session):
        raise RoutingError("invalid_session")
    # A worker process reports its own node id. Events of the GCS, on the head, can be about any node.
    sender = _node_hex(node) if source == "CORE_WORKER" and isinstance(node, str) else None
    return EventRoute(session, _category(job) if job else NODE_EVENTS, sender)


@lru_cache(maxsize=64)
def _is_session_name(name: str) -> bool:
    return is_session_name(name)


@lru_cache(maxsize=64)
def _node_hex(node: str) -> str | None:
    return ids.to_hex(node, ids.NODE)


@lru_cache(maxsize=4096)
def _category(job: str) -> str:
    name = ids.any_to_hex(job)
    return f"{JOB_EVENTS}/{name}" if is_safe_component(name) else NODE_EVENTS
