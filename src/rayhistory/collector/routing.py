"""Where an event belongs: its session, and its category by KubeRay's rules. Nothing else of it is read here.

Events are read with one typed decoder that skips everything but these fields. What does not fit it (numbers
for strings, and the like) is read again, slowly and tolerantly.
"""

import operator
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from rayhistory import ids
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


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


class _Job(msgspec.Struct):
    camel: str | None = msgspec.field(default=None, name="jobId")
    snake: str | None = msgspec.field(default=None, name="job_id")


_NAMES = [(name, spelling) for name in _WITH_JOB for spelling in (name, _snake(name))]
_Header: Any = msgspec.defstruct(
    "_Header",
    [
        *[
            (_snake(name) + suffix, str | None, msgspec.field(default=None, name=spelling))
            for name in ("sessionName", "eventType", "sourceType", "nodeId")
            for suffix, spelling in (("", name), ("_", _snake(name)))
        ],
        *[(f"job{n}", _Job | None, msgspec.field(default=None, name=name)) for n, (_, name) in enumerate(_NAMES)],
    ],
)
_header = msgspec.json.Decoder(_Header).decode
_jobs_of = operator.attrgetter(*(f"job{n}" for n in range(len(_NAMES))))


class RoutingError(Exception):
    """Carries the reason, in one or two words."""


class Route(NamedTuple):
    session: str
    category: bytes
    node: str | None
    """The node that sent it, where the event tells (from Ray 2.54)."""


def route(event: bytes) -> Route:
    """Raises RoutingError for what is not an event of a session."""
    try:
        header = _header(event)
    except msgspec.ValidationError:
        return _route_slowly(event)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RoutingError("not JSON") from None
    job = None
    if (header.event_type or header.event_type_) not in _NODE_TYPES:
        for nested in _jobs_of(header):
            if nested is not None and (job := nested.camel or nested.snake):
                break
    return _checked(
        header.session_name or header.session_name_,
        job,
        header.source_type or header.source_type_,
        header.node_id or header.node_id_,
    )


def _route_slowly(event: bytes) -> Route:
    try:
        fields = msgspec.json.decode(event)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RoutingError("not JSON") from None
    if not isinstance(fields, dict):
        raise RoutingError("not an object")

    def either(of: dict[str, Any], name: str) -> Any:
        return of.get(name) or of.get(_snake(name))

    job = None
    if either(fields, "eventType") not in _NODE_TYPES:
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
    return Route(session, _category(job) if job else NODE_EVENTS.encode(), own)


@lru_cache(maxsize=64)
def _is_session(name: str) -> bool:
    return is_session_name(name)


@lru_cache(maxsize=64)
def _node_hex(node: str) -> str | None:
    return ids.to_hex(node, ids.NODE)


@lru_cache(maxsize=4096)
def _category(job: str) -> bytes:
    name = ids.any_to_hex(job)
    return f"{JOB_EVENTS}/{name}".encode() if is_safe_component(name) else NODE_EVENTS.encode()
