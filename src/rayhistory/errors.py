"""Every exception that the project raises on purpose.

RayHistoryError
├── UsageError              the caller's mistake: one line, exit code 2
│   └── Misconfigured       a setting that cannot work, found at start
├── StoreError              the object store did not do what was asked
│   ├── ObjectNotFound
│   ├── ObjectExists        a conditional create came second
│   ├── StoreDenied
│   └── StoreUnavailable    try again later; never the same as "empty"
│       ├── Throttled       the store is too busy, or asks for fewer requests
│       └── BucketNotFound  not the object but the bucket or container is not there
├── AccessError             somebody may not do what they asked for
│   ├── NotSignedIn         nobody knows who they are
│   ├── NotAllowed          it is known who they are, and that they may not
│   ├── AccessUnknown       it cannot be found out now: then they may not either
│   └── TooManyCalls        not so many at once
├── KubernetesError         the Kubernetes API did not do what was asked
├── SessionNotFound
├── LogNotFound
├── NotIndexedYet           the fold is still running
├── FoldFailed              the fold ended with an error
└── DamagedIndex            an index that cannot be trusted: rebuild it
"""


class RayHistoryError(Exception):
    """Root of all: its text is one line that a user can act on."""


class UsageError(RayHistoryError):
    """Something that was asked for cannot be done as asked."""


class Misconfigured(UsageError):
    """A setting, named in the message, has a value that cannot work."""


class StoreError(RayHistoryError):
    """An operation on the object store failed."""


class ObjectNotFound(StoreError):
    """There is no object with this key."""


class ObjectExists(StoreError):
    """A create found the key taken."""


class StoreDenied(StoreError):
    """The store refused: credentials or permissions."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or is overloaded."""


class Throttled(StoreUnavailable):
    """The store is too busy, or asks for fewer requests; `retry_after` is how many seconds to leave it alone."""

    def __init__(self, message: str, retry_after: float = 5.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class BucketNotFound(StoreUnavailable):
    """The bucket or container does not exist, or not yet."""


class AccessError(RayHistoryError):
    """Somebody may not do what they asked for."""


class NotSignedIn(AccessError):
    """No token, or one that is not valid; `wrong` tells which."""

    def __init__(self, message: str, *, wrong: bool = False) -> None:
        super().__init__(message)
        self.wrong = wrong


class NotAllowed(AccessError):
    """The visitor is known, and has no rights here."""


class AccessUnknown(AccessError):
    """Whoever decides this does not answer: until it does, nobody may."""


class TooManyCalls(AccessError):
    """The visitor asks for too much in too short a time; `retry_after` is how many seconds to wait."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class KubernetesError(RayHistoryError):
    """The Kubernetes API refused, or does not answer (then `status` is 0)."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class SessionNotFound(RayHistoryError):
    """No session of this name is in the store."""


class LogNotFound(RayHistoryError):
    """No log file of this name was kept."""


class NotIndexedYet(RayHistoryError):
    """The session is being folded; `progress` is what is known of how far it is (0 to 1)."""

    def __init__(self, message: str, progress: float | None = None) -> None:
        super().__init__(message)
        self.progress = progress


class FoldFailed(RayHistoryError):
    """The process that folded the session ended with an error."""


class DamagedIndex(RayHistoryError):
    """An index whose files do not fit together, or are of another schema."""
