"""Classify error responses of object stores, in the same way for every client library."""

from rayhistory.errors import (
    BucketNotFound,
    ObjectExists,
    ObjectNotFound,
    StoreDenied,
    StoreThrottled,
    StoreUnavailable,
)

_NO_BUCKET_CODES = {"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"}
_DENIED_CODES = {
    "AccessDenied", "AuthorizationHeaderMalformed", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken",
    "RequestTimeTooSkewed", "SignatureDoesNotMatch", "TokenRefreshRequired", "AuthenticationFailed",
}  # fmt: skip


class RangeBeyondEnd(Exception):
    """A range starts at or after the end of the object."""


def response_error(status: int, code: str, *, key: str, what: str, text: str) -> Exception | None:
    """Return the exception for a status and an error code; None if these do not tell what happened.

    `what` is the URL of the store, with the name of the operation where that is known. `text` is the error in one line.
    """
    where = location(what, key)
    if code in _NO_BUCKET_CODES:
        return BucketNotFound(f"{what}: bucket not found ({code})")
    if status == 404:
        return ObjectNotFound(f"object {key} not found")
    if status in {409, 412}:
        return ObjectExists(f"object {key} already exists")
    if status == 416:
        return RangeBeyondEnd(key)
    if status in {401, 403} or code in _DENIED_CODES:
        return StoreDenied(f"{where}: access denied ({text})")
    if status in {429, 503}:
        return StoreThrottled(f"{where}: store is overloaded ({text})")
    if status >= 500 or status == 408:
        return StoreUnavailable(f"{where}: {text}")
    return None


def location(what: str, key: str) -> str:
    """Return the beginning of an error message. Errors of some operations have no key."""
    return f"{what}: {key}" if key else what
