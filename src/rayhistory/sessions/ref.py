"""SessionRef: the identity of a session."""

import re
from datetime import UTC, datetime

import msgspec

from rayhistory.errors import UsageError
from rayhistory.names import parse_dns_name

_SESSION_NAME = re.compile(r"session_(\d{4}-\d{2}-\d{2}_\d{2}-\d{2}-\d{2})_(\d{6})(_[A-Za-z0-9.-]+)?\Z", re.ASCII)
_PATH_COMPONENT = re.compile(r"[A-Za-z0-9._-]+\Z")


def is_session_name(name: str) -> bool:
    return len(name) <= 128 and _SESSION_NAME.match(name) is not None


def is_safe_component(text: str) -> bool:
    """Return whether untrusted text is safe as one component of a path or key."""
    return text not in {"", ".", ".."} and len(text) <= 255 and _PATH_COMPONENT.match(text) is not None


def session_start_time(name: str) -> datetime | None:
    """Return the time in a session's name, read as UTC, as in KubeRay."""
    match = _SESSION_NAME.match(name)
    if not match:
        return None
    try:
        day, _, clock = match[1].partition("_")
        return datetime.fromisoformat(f"{day} {clock.replace('-', ':')}.{match[2]:0<6}").replace(tzinfo=UTC)
    except ValueError:
        return None


class SessionRef(msgspec.Struct, frozen=True, order=True):
    """Namespace, cluster and session name. The owner is an attribute, not part of the identity."""

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
        """Build a ref from untrusted names; raise UsageError if one is invalid."""
        try:
            parse_dns_name(namespace), parse_dns_name(cluster)
        except ValueError as error:
            raise UsageError(f"invalid namespace or cluster {namespace!r}, {cluster!r}: {error}") from None
        if not is_session_name(session):
            raise UsageError(f"invalid session name {session!r}: use session_YYYY-MM-DD_HH-MM-SS_UUUUUU…")
        return cls(namespace, cluster, session, owner_kind, owner_name)

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.namespace, self.cluster, self.session

    @property
    def owner_variants(self) -> tuple["SessionRef", ...]:
        """This ref with and without its owner, because not all collectors of a cluster may know the owner."""
        return (self, SessionRef(*self.identity)) if self.owner_kind else (self,)

    @property
    def path(self) -> str:
        return f"{self.namespace}/{self.cluster}/{self.session}"

    @property
    def url(self) -> str:
        return f"/s/{self.path}/"
