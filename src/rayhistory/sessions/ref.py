"""Which session is meant: (namespace, cluster, session name). The owner is an attribute, not part of the identity."""

import re
from datetime import UTC, datetime

import msgspec

from rayhistory.errors import UsageError
from rayhistory.settings import parse_name

_SESSION = re.compile(r"session_(\d{4}-\d{2}-\d{2}_\d{2}-\d{2}-\d{2})_(\d{6})(_[A-Za-z0-9.-]+)?\Z", re.ASCII)
_COMPONENT = re.compile(r"[A-Za-z0-9._-]+\Z")


def is_session_name(name: str) -> bool:
    return len(name) <= 128 and _SESSION.match(name) is not None


def is_safe_component(text: str) -> bool:
    """Fit to be one part of a path: what comes from outside is checked with this before it names anything."""
    return text not in {"", ".", ".."} and len(text) <= 255 and _COMPONENT.match(text) is not None


def session_time(name: str) -> datetime | None:
    """The time in a session's name, read as UTC, as KubeRay does."""
    match = _SESSION.match(name)
    if not match:
        return None
    try:
        day, _, clock = match[1].partition("_")
        return datetime.fromisoformat(f"{day} {clock.replace('-', ':')}.{match[2]:0<6}").replace(tzinfo=UTC)
    except ValueError:
        return None


class SessionRef(msgspec.Struct, frozen=True, order=True):
    namespace: str
    cluster: str
    session: str
    owner_kind: str | None = None
    owner_name: str | None = None

    @classmethod
    def checked(
        cls,
        namespace: str,
        cluster: str,
        session: str,
        owner_kind: str | None = None,
        owner_name: str | None = None,
    ) -> "SessionRef":
        """From names that came from outside."""
        try:
            parse_name(namespace), parse_name(cluster)
        except ValueError as error:
            raise UsageError(f"not a namespace and cluster: {namespace!r}, {cluster!r} ({error})") from None
        if not is_session_name(session):
            raise UsageError(f"not a session name: {session!r}")
        return cls(namespace, cluster, session, owner_kind, owner_name)

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.namespace, self.cluster, self.session

    @property
    def spellings(self) -> tuple["SessionRef", ...]:
        """With its owner and without: the collectors of a cluster may not all have been told of one."""
        return (self, SessionRef(*self.identity)) if self.owner_kind else (self,)

    @property
    def path(self) -> str:
        return f"{self.namespace}/{self.cluster}/{self.session}"

    @property
    def url(self) -> str:
        return f"/s/{self.path}/"
