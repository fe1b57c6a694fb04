"""The address of a session, before it is looked up: `/s/…` paths and KubeRay's cookies become a `Selection`.

/s/{namespace}/{cluster}/{session_…|latest|live}[@{UTC ms or ISO 8601}]/…
/s/{namespace}/~rayjob/{name}/[{session_…|latest|live}/]…        likewise ~rayservice
"""

from collections.abc import Mapping

import msgspec

from rayhistory.errors import SessionNotFound, UsageError
from rayhistory.names import parse_dns_name
from rayhistory.sessions.ref import is_session_name
from rayhistory.utc import parse_utc_ms

LATEST, LIVE = "latest", "live"
_PATH_USAGE = "use /s/{namespace}/{cluster}/{session}/"
OWNER_KINDS = ("rayjob", "rayservice")
COOKIES = ("cluster_name", "cluster_namespace", "session_name", "owner_kind", "owner_name")


class Selection(msgspec.Struct, frozen=True):
    """A session as named by an address, before it is looked up."""

    namespace: str
    name: str
    session: str
    owner_kind: str | None = None
    as_of_ms: int | None = None
    from_cookies: bool = False

    @property
    def path(self) -> str:
        return f"{self.namespace}/{self.name}/{self.session}"


def parse_session_path(path: str) -> tuple[Selection, str | None]:
    """Parse the path after `/s/` into the selection and the rest. The rest is None if the final slash is missing.

    Percent-encoding is decoded once, as a proxy does: `%2541` does not become `A`.
    """
    parts = path.split("/")
    if len(parts) < 2:
        raise UsageError(f"incomplete session path: {_PATH_USAGE}")
    namespace, second, rest = _parse_name(parts[0]), parts[1], parts[2:]
    kind = second[1:].lower() if second.startswith("~") else None
    if kind is not None:
        if kind not in OWNER_KINDS or not rest:
            raise UsageError(f"invalid owner {second!r}: use ~rayjob/{{name}} or ~rayservice/{{name}}")
        name, rest = _parse_name(rest[0]), rest[1:]
    else:
        name = _parse_name(second)
    session, as_of_ms = LATEST, None
    if rest and (kind is None or _is_session(rest[0])):
        session, as_of_ms = _parse_session(rest[0])
        rest = rest[1:]
    elif kind is None:
        raise UsageError(f"incomplete session path: {_PATH_USAGE}")
    return Selection(namespace, name, session, kind, as_of_ms), "/".join(rest) if rest else None


def selection_from_cookies(cookies: Mapping[str, str]) -> Selection | None:
    """Return the session that a KubeRay client selected with `/enter_cluster`; None if there is none."""
    name, namespace, session = (cookies.get(key, "") for key in COOKIES[:3])
    if not (name and namespace and session):
        return None
    if session not in (LATEST, LIVE) and not is_session_name(session):
        raise UsageError(f"invalid session name: {session!r}")
    return Selection(_parse_name(namespace), _parse_name(name), session, from_cookies=True)


def validated_selection(namespace: str, name: str, session: str, owner_kind: str | None) -> Selection:
    return Selection(_parse_name(namespace), _parse_name(name), _parse_session_name(session), owner_kind)


def _parse_name(text: str) -> str:
    try:
        return parse_dns_name(text)
    except ValueError:
        raise UsageError(f"invalid namespace, cluster or owner name: {text!r}") from None


def _is_session(text: str) -> bool:
    name = text.partition("@")[0]
    return name in (LATEST, LIVE) or is_session_name(name)


def _parse_session(text: str) -> tuple[str, int | None]:
    name, at, as_of = text.partition("@")
    return _parse_session_name(name), _parse_as_of(as_of) if at else None


def _parse_session_name(text: str) -> str:
    if text not in (LATEST, LIVE) and not is_session_name(text):
        raise SessionNotFound(f"invalid session name: {text!r}")
    return text


def _parse_as_of(text: str) -> int:
    try:
        return max(0, parse_utc_ms(text))
    except ValueError:
        raise UsageError(f"invalid time {text!r}: use milliseconds since 1970, or ISO 8601 in UTC") from None
