"""What obstore raises, as our own errors.

obstore has few classes and puts the rest into its text: the HTTP status, and the cloud's own code and message.
"""

import re
from typing import NamedTuple

from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from rayhistory.errors import (
    BucketNotFound,
    ObjectExists,
    ObjectNotFound,
    StoreDenied,
    StoreError,
    StoreUnavailable,
    Throttled,
)

OBSTORE_ERRORS = (BaseError, OSError, ValueError)

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]+)</Message>")
_CAUSE = re.compile(r'(?:message|error|kind): "?([A-Za-z][^"\n{}]{3,120}?)"?,?\n')
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"}
_REFUSED = {
    "AccessDenied", "AuthorizationHeaderMalformed", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken",
    "RequestTimeTooSkewed", "SignatureDoesNotMatch", "TokenRefreshRequired", "AuthenticationFailed",
}  # fmt: skip
_ASKING_FOR_CREDENTIALS = re.compile(
    r"https?://169\.254\.|computeMetadata|/latest/api/token|/oauth2/|AssumeRole|performing \w+ REDACTED|[Cc]redential"
)


class BeyondTheEnd(Exception):
    """A range that begins where the object has ended."""


class _Answer(NamedTuple):
    status: int
    code: str
    text: str


def translated(error: Exception, key: str, what: str) -> Exception:
    """The error of ours that says the same, in one line. `what` is the store's URL and the operation's name."""
    answer = _read(error)
    where = f"{what}: {key}" if key else what
    status, code = answer.status, answer.code
    if code in _NO_BUCKET:
        return BucketNotFound(f"{what}: there is no such bucket ({code})")
    if isinstance(error, FileNotFoundError) or status == 404:
        return ObjectNotFound(f"no object {key}")
    if isinstance(error, AlreadyExistsError | PreconditionError) or status in {409, 412}:
        return ObjectExists(f"object {key} exists")
    if status == 416 or "Wanted range starting at" in str(error):
        return BeyondTheEnd(key)
    if status in {401, 403} or code in _REFUSED:
        return StoreDenied(f"{where}: refused ({answer.text})")
    if status in {429, 503}:
        return Throttled(f"{where}: the store is too busy ({answer.text})")
    if status >= 500 or status == 408:
        return StoreUnavailable(f"{where}: {answer.text}")
    if "incorrectly configured region" in str(error):
        return StoreError(f"{where}: the bucket is in another region (S3_REGION)")
    if not status and _ASKING_FOR_CREDENTIALS.search(_headline(error)):
        return StoreDenied(f"{where}: no credentials could be had ({answer.text})")
    if not status and isinstance(error, BaseError | OSError):
        return StoreUnavailable(f"{where}: {answer.text}")
    return StoreError(f"{where}: {answer.text}")


def _read(error: Exception) -> _Answer:
    text = str(error)
    status, code, message = (pattern.search(text) for pattern in (_STATUS, _CODE, _MESSAGE))
    number = int(status[1]) if status else 0
    name = code[1] if code else ""
    if number:
        words = " ".join(part for part in (status[1] if status else "", name, message[1] if message else "") if part)
    else:
        words = _headline(error)
        cause = _CAUSE.findall(text)
        words += f": {cause[-1].strip()}" if cause and cause[-1].strip() not in words else ""
    return _Answer(number, name, " ".join(words.split())[:300])


def _headline(error: Exception) -> str:
    return str(error).partition("\n\nDebug source")[0].strip()
