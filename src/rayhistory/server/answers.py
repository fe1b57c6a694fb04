"""The shapes of answers: Ray's for Ray's API, one of our own for ours."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.responses import Response

_ENCODER = msgspec.json.Encoder()
_DEEPEST = 100


def json_answer(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(_ENCODER.encode(body), status, headers, "application/json")


def rest_answer(message: str, data: dict[str, Any], *, result: bool = True, status: int = 200) -> Response:
    """The envelope of Ray's dashboard."""
    return json_answer({"result": result, "msg": message, "data": data}, status)


def state_answer(result: object, total: int, filtered: int, warnings: list[str] | None = None) -> Response:
    """The envelope of Ray's State API. Nothing is ever cut before the filters here, so both totals are the same.

    They come after the result: of a long one they are known when it is written.
    """
    return rest_answer(
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


def ray_error(message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    """An error inside Ray's API, in the shape that its clients print."""
    return json_answer({"result": False, "msg": message, "data": {"result": None}}, status, headers)


def own_error(message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    """An error of our own API."""
    return json_answer({"error": {"status": status, "message": message}}, status, headers)


def text_answer(text: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(text, status, headers, "text/plain")


def parsed(text: str | None, default: Any) -> Any:
    """A column that holds JSON; what is not of the default's type, too deep, or no JSON at all, is the default."""
    if not text:
        return default
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return default
    if text.count("[") + text.count("{") > _DEEPEST and _is_deep(value):
        return default
    return value if default is None or isinstance(value, type(default)) else default


def _is_deep(value: Any) -> bool:
    """Whether what can just be decoded could not be walked through or encoded again."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [item for one in level if isinstance(one, dict | list) for item in _items(one)]
    return bool(level)


def _items(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def inside(answer: Any, *path: str) -> dict[str, Any]:
    """What an answer, which others wrote, has at this place; nothing where it is of another shape."""
    for key in path:
        answer = answer.get(key) if isinstance(answer, dict) else None
    return answer if isinstance(answer, dict) else {}


def objects(value: Any) -> list[dict[str, Any]]:
    """Those that are in a list which others wrote."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def google_style(value: Any) -> Any:
    """Keys from snake_case to camelCase all the way down, as Ray's dashboard does: map keys too."""
    if isinstance(value, dict):
        return {camel_key(key): google_style(item) for key, item in value.items()}
    if isinstance(value, list):
        return [google_style(item) for item in value]
    return value


def camel_key(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(part.title() for part in rest)


_ANSI = re.compile(r"\x1b\[[\d;]*m")


def without_ansi(text: str) -> str:
    return _ANSI.sub("", text)
