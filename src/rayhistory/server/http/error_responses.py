"""Turn errors into responses: our shape for our API, Ray's shape for Ray's API, and a header with the code for both."""

import math

from starlette.responses import Response

from rayhistory.errors import (
    ERROR_HEADER,
    AccessDenied,
    HeadUnavailable,
    IndexFailed,
    MethodNotAllowed,
    NotFound,
    NotSignedIn,
    ProductNotBuilt,
    RangeNotSatisfiable,
    RateLimited,
    RayHistoryError,
    SessionNotIndexed,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from rayhistory.server.http.paths import is_history_api
from rayhistory.server.http.responses import json_response, rest_failure, text_response

_RETRY_AFTER_S = 2
_CODES_BY_STATUS = {
    error.http_status: error.code
    for error in (
        UsageError, NotSignedIn, AccessDenied, NotFound, MethodNotAllowed, RangeNotSatisfiable, RateLimited,
        RayHistoryError, HeadUnavailable, StoreUnavailable,
    )
} | {410: NotFound.code, 504: HeadUnavailable.code}  # fmt: skip


def error_headers(error: RayHistoryError) -> dict[str, str]:
    headers = {ERROR_HEADER: error.code}
    if isinstance(error, NotSignedIn):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, RateLimited):
        headers["Retry-After"] = str(math.ceil(error.retry_after))
    elif error.http_status == 503:
        headers["Retry-After"] = str(_RETRY_AFTER_S)
    return headers


def code_of_status(status: int) -> str:
    """Return the code for an error response that has none, such as Ray's 404 messages."""
    return _CODES_BY_STATUS.get(status) or (UsageError.code if status < 500 else RayHistoryError.code)


def api_error_response(error: RayHistoryError) -> Response:
    """Report an error in the shape of our own API."""
    return json_response({"error": error_body(error)}, error.http_status, error_headers(error))


def error_body(error: RayHistoryError) -> dict[str, str | int]:
    """Return the `error` member of a response of our API. It is also used for a stream that ends with an error."""
    return {"status": error.http_status, "code": error.code, "message": _message(error)}


def ray_error_response(error: RayHistoryError) -> Response:
    """Report an error in the shape that Ray's clients print."""
    return rest_failure(_message(error), error.http_status, error_headers(error))


def text_error_response(error: RayHistoryError, text: str | None = None) -> Response:
    return text_response(str(error) if text is None else text, error.http_status, error_headers(error))


def error_response(path: str, error: RayHistoryError) -> Response:
    """Report an error in the shape of the API that the path belongs to."""
    return api_error_response(error) if is_history_api(path) else ray_error_response(error)


def plain_error_response(path: str, error: RayHistoryError) -> Response:
    """Report an error in the shape of our own API or, for all other paths, as plain text."""
    return api_error_response(error) if is_history_api(path) else text_error_response(error)


def _message(error: RayHistoryError) -> str:
    message = str(error)
    if isinstance(error, SessionNotIndexed):
        return f"This session is being indexed: {message}. Retry in a few seconds."
    if isinstance(error, ProductNotBuilt):
        return f"Not built yet: {message}. Retry in a few seconds."
    if isinstance(error, StoreError):
        return f"The object store cannot be read: {message}"
    if isinstance(error, IndexFailed):
        return f"This session cannot be indexed: {message}"
    return message
