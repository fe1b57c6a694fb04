"""Response shapes: JSON, text, and the envelopes of Ray's APIs."""

import re
from typing import Any

import msgspec
from starlette.responses import Response

_ENCODER = msgspec.json.Encoder()
_ANSI = re.compile(r"\x1b\[[\d;]*m")


def json_response(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(_ENCODER.encode(body), status, headers, "application/json")


def text_response(text: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(text, status, headers, "text/plain")


def rest_response(message: str, data: dict[str, Any], *, result: bool = True, status: int = 200) -> Response:
    """Wrap data in the envelope of Ray's dashboard."""
    return json_response({"result": result, "msg": message, "data": data}, status)


def rest_failure(message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    """Report an error in the envelope of Ray's dashboard, which Ray's clients print."""
    return json_response({"result": False, "msg": message, "data": {"result": None}}, status, headers)


def state_response(result: object, total: int, filtered: int, warnings: list[str] | None = None) -> Response:
    """Wrap a result in the envelope of Ray's State API.

    Nothing is truncated before filtering, so both totals are equal. They follow the result, because the totals of a
    long result are known only at its end.
    """
    return rest_response(
        "",
        {
            "result": {
                "result": result,
                "total": total,
                "num_after_truncation": total,
                "num_filtered": filtered,
                "partial_failure_warning": "",
                "warnings": warnings,
            }
        },
    )


def google_style(value: Any) -> Any:
    """Convert keys from snake_case to camelCase recursively, including map keys, as Ray's dashboard does."""
    if isinstance(value, dict):
        return {camel_key(key): google_style(item) for key, item in value.items()}
    if isinstance(value, list):
        return [google_style(item) for item in value]
    return value


def camel_key(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(part.title() for part in rest)


def strip_ansi(text: str) -> str:
    return _ANSI.sub("", text)
