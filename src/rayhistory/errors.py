"""Every exception that the project raises on purpose, each with a stable code and an HTTP status.

RayHistoryError
├── UsageError              invalid input; `rayhistory` prints one line and exits with 2
│   ├── InvalidSetting      a setting that cannot work, found at start
│   ├── NoSessionSelected   neither the path nor the cookies name a session
│   ├── MethodNotAllowed    a method that the path does not accept
│   ├── ServerOutdated      a server that is older than its client, and lacks what the client needs
│   └── RangeNotSatisfiable
├── NotFound
│   ├── SessionNotFound
│   ├── TimeBeforeStart     a point in time before the session's start
│   └── LogNotFound
├── StoreError              an operation on the object store failed
│   ├── ObjectNotFound
│   ├── ObjectExists        create-if-absent found an object
│   ├── StoreDenied
│   └── StoreUnavailable    retry later; never treat it as an empty result
│       ├── InvalidKeyInStore  a listing found a key that it cannot read
│       ├── StoreThrottled  the store is overloaded, or asks for fewer requests
│       └── BucketNotFound  the bucket or container is missing, not the object
├── AccessError
│   ├── NotSignedIn         no token
│   │   └── InvalidToken
│   ├── AccessDenied        the visitor is identified and has no rights here
│   ├── AccessCheckFailed   the check itself failed: access is denied until it works
│   ├── RateLimited
│   ├── SqlDisabled         SQL is off on this server
│   ├── HostNotAllowed      a Host header that is not in --allowed-hosts
│   └── OriginNotAllowed    an Origin header of another site
├── KubernetesError         a call to the Kubernetes API failed
├── HeadError               the dashboard of a live cluster replied with an error
│   └── HeadUnavailable     it did not reply
├── SessionNotIndexed       the index is still being built
├── ProductNotBuilt         something derived from the index does not exist yet
├── ProductFailed           building it failed
├── ResponseTooLarge        a stored dashboard response that is too large to be decoded
├── QueryFailed             a query that the index cannot evaluate, though it is not damaged
├── DiskFull                no space left for caches and temporary files
├── IndexFailed             building the index failed
└── IndexDamaged            an index that cannot be trusted: rebuild it
"""

import errno
import os
from typing import ClassVar

ERROR_HEADER = "X-RayHistory-Error"
"""The response header with an error's code, for any shape of the body."""


class RayHistoryError(Exception):
    """Base class of all these exceptions. The message is one line that a user can act on."""

    code: ClassVar[str] = "internal_error"
    """Stable code for programs. Messages may change."""
    http_status: int = 500


class UsageError(RayHistoryError):
    """A request or a command with invalid input."""

    code = "invalid_request"
    http_status = 400


class InvalidSetting(UsageError):
    """A setting, named in the message, has a value that cannot work."""

    code = "invalid_setting"


class NoSessionSelected(UsageError):
    """The request needs a session, but names none."""

    code = "no_session_selected"


class MethodNotAllowed(UsageError):
    """The path does not accept this method. Most paths accept only GET and HEAD, because the server is read-only."""

    code = "method_not_allowed"
    http_status = 405


class ServerOutdated(UsageError):
    """The server is older than this client and has no route for the request."""

    code = "server_outdated"
    http_status = 404


class RangeNotSatisfiable(UsageError):
    """The requested byte range lies outside of the content."""

    code = "range_not_satisfiable"
    http_status = 416


class NotFound(RayHistoryError):
    """No route or resource has this path."""

    code = "not_found"
    http_status = 404


class SessionNotFound(NotFound):
    """The store has no session of this name."""

    code = "session_not_found"


class TimeBeforeStart(NotFound):
    """The session started after the requested point in time. `start_url` shows its start."""

    code = "time_before_start"

    def __init__(self, message: str, start_url: str = "") -> None:
        super().__init__(message)
        self.start_url = start_url


class LogNotFound(NotFound):
    """The session has no log file of this name."""

    code = "log_not_found"


class StoreError(RayHistoryError):
    """An operation on the object store failed."""

    code = "store_error"
    http_status = 503


class ObjectNotFound(StoreError):
    """The store has no object with this key."""

    code = "object_not_found"


class ObjectExists(StoreError):
    """The key already exists, so the object was not created."""

    code = "object_exists"


class StoreDenied(StoreError):
    """The store refused the request because of credentials or permissions."""

    code = "store_denied"


class StoreUnavailable(StoreError):
    """The store cannot be reached or is overloaded."""

    code = "store_unavailable"


class InvalidKeyInStore(StoreUnavailable):
    """A listing found an object whose key is invalid, and cannot continue. Every writer of the store can add one."""

    code = "invalid_key_in_store"


class StoreThrottled(StoreUnavailable):
    """The store is overloaded or asks for fewer requests; wait `retry_after` seconds."""

    code = "store_throttled"

    def __init__(self, message: str, retry_after: float = 5.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class BucketNotFound(StoreUnavailable):
    """The bucket or container does not exist, or not yet."""

    code = "bucket_not_found"


class AccessError(RayHistoryError):
    """The visitor has no permission for this request."""

    code = "access_error"
    http_status = 403


class NotSignedIn(AccessError):
    """The request identifies no visitor."""

    code = "not_signed_in"
    http_status = 401


class InvalidToken(NotSignedIn):
    """The request has an invalid token. The status is 403, as in Ray."""

    code = "invalid_token"
    http_status = 403


class AccessDenied(AccessError):
    """The visitor is identified, but has no access to what the request asks for."""

    code = "access_denied"


class AccessCheckFailed(AccessError):
    """The visitor's access cannot be checked now, so the request is refused."""

    code = "access_check_failed"
    http_status = 503


class RateLimited(AccessError):
    """Too many requests from one visitor; wait `retry_after` seconds."""

    code = "rate_limited"
    http_status = 429

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class SqlDisabled(AccessError):
    """SQL is disabled on this server. It needs --sql."""

    code = "sql_disabled"
    http_status = 403


class HostNotAllowed(AccessError):
    """The Host header is not one of the server's names."""

    code = "host_not_allowed"
    http_status = 400


class OriginNotAllowed(AccessError):
    """A page of another site may not send this request."""

    code = "origin_not_allowed"


class KubernetesError(RayHistoryError):
    """The Kubernetes API returned `status`, or did not respond (then `status` is 0)."""

    code = "kubernetes_error"
    http_status = 503

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class HeadError(RayHistoryError):
    """The dashboard of a live cluster replied with an error."""

    code = "head_error"
    http_status = 502


class HeadUnavailable(HeadError):
    """The dashboard of a live cluster did not reply."""

    code = "head_unavailable"


class SessionNotIndexed(RayHistoryError):
    """The session is being indexed; `progress` is between 0 and 1, or None if unknown."""

    code = "session_not_indexed"
    http_status = 503

    def __init__(self, message: str, progress: float | None = None) -> None:
        super().__init__(message)
        self.progress = progress


class ProductNotBuilt(RayHistoryError):
    """A product of the session is being built; `progress` is between 0 and 1, or None if unknown."""

    code = "product_not_built"
    http_status = 503

    def __init__(self, message: str, progress: float | None = None) -> None:
        super().__init__(message)
        self.progress = progress


class ProductFailed(RayHistoryError):
    """The process that built a product of the session ended with an error."""

    code = "product_failed"


class ResponseTooLarge(RayHistoryError):
    """A stored dashboard response is so large that decoding it could exhaust the server's memory."""

    code = "response_too_large"


class QueryFailed(RayHistoryError):
    """The database cannot evaluate a query. Rebuilding the index would not help."""

    code = "query_failed"


class DiskFull(RayHistoryError):
    """The disk with caches and temporary files is full, or a quota is used up."""

    code = "disk_full"
    http_status = 507

    def __init__(self, message: str = "no space left for the cache or temporary files: free some, then try again"):
        super().__init__(message)


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def disk_full_error(error: Exception) -> DiskFull | None:
    """Return a DiskFull error if another error reports a full disk, else None.

    DuckDB reports no error numbers, so its message is compared with the system's error texts.
    """
    text = str(error)
    is_full = getattr(error, "errno", None) in _DISK_FULL or any(os.strerror(number) in text for number in _DISK_FULL)
    return DiskFull() if is_full else None


class IndexFailed(RayHistoryError):
    """The process that indexed the session ended with an error."""

    code = "index_failed"


class IndexDamaged(RayHistoryError):
    """The files of an index are inconsistent, or have another schema."""

    code = "index_damaged"
