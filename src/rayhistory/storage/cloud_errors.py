"""Translate obstore's exceptions into ours.

obstore has few exception classes. HTTP status, error code and message are only in the text.
"""

import re
from typing import NamedTuple

from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from rayhistory.errors import (
    InvalidKeyInStore,
    ObjectExists,
    ObjectNotFound,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from rayhistory.storage.response_errors import RangeBeyondEnd, location, response_error

OBSTORE_ERRORS = (BaseError, OSError, ValueError)

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]+)</Code>")
_BULK_DELETE_CODE = re.compile(r"DeleteObjects request failed for key .*\(code: (\w+)\)\Z", re.DOTALL)
"""A pattern for the error code of a refused key. S3 answers a bulk deletion with 200 and a list of refused keys."""
_MESSAGE = re.compile(r"<Message>([^<]+)</Message>")
_CAUSE = re.compile(r'(?:message|error|kind): "?([A-Za-z][^"\n{}]{3,120}?)"?,?\n')
_CREDENTIALS_REQUEST = re.compile(
    r"https?://169\.254\.|computeMetadata|/latest/api/token|/oauth2/|AssumeRole|performing \w+ REDACTED|[Cc]redential"
)


class _ErrorResponse(NamedTuple):
    status: int
    code: str
    text: str


def translated(error: Exception, key: str, what: str) -> Exception:
    """Return our exception for one of obstore's, with a message of one line.

    `what` is the URL of the store and the name of the operation.
    """
    response = _read(error)
    where = location(what, key)
    found = response_error(response.status, response.code, key=key, what=what, text=response.text)
    if found is not None:
        return found
    if isinstance(error, FileNotFoundError):
        return ObjectNotFound(f"object {key} not found")
    if isinstance(error, AlreadyExistsError | PreconditionError):
        return ObjectExists(f"object {key} already exists")
    if "Wanted range starting at" in str(error):
        return RangeBeyondEnd(key)
    if "Encountered object with invalid path" in str(error):
        return InvalidKeyInStore(f"{where}: {response.text}")
    if "incorrectly configured region" in str(error):
        return StoreError(f"{where}: the bucket is in another region: set S3_REGION")
    if not response.status and _CREDENTIALS_REQUEST.search(_headline(error)):
        return StoreDenied(f"{where}: no credentials available ({response.text})")
    if not response.status and isinstance(error, BaseError | OSError):
        return StoreUnavailable(f"{where}: {response.text}")
    return StoreError(f"{where}: {response.text}")


def _read(error: Exception) -> _ErrorResponse:
    text = str(error)
    status, code, message = (pattern.search(text) for pattern in (_STATUS, _CODE, _MESSAGE))
    status_code = int(status[1]) if status else 0
    code = code or _BULK_DELETE_CODE.search(_headline(error))
    name = code[1] if code else ""
    if status_code:
        words = " ".join(part for part in (status[1] if status else "", name, message[1] if message else "") if part)
    else:
        words = _headline(error)
        cause = _CAUSE.findall(text)
        words += f": {cause[-1].strip()}" if cause and cause[-1].strip() not in words else ""
    return _ErrorResponse(status_code, name, " ".join(words.split())[:300])


def _headline(error: Exception) -> str:
    return str(error).partition("\n\nDebug source")[0].strip()
