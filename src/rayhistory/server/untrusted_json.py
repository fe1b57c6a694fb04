"""Read untrusted JSON of any shape."""

from collections.abc import Iterable
from typing import Any

import msgspec

_MAX_DEPTH = 100
MAX_VALUES = 500_000
"""Maximum number of values in JSON that is decoded. A decoded value may need 200 bytes, many times its size as text."""


def decode_json(text: str | None, default: Any) -> Any:
    """Decode a column that contains JSON.

    Return the default if it is invalid, nested too deeply, has too many values or has another type.
    """
    if not text or has_too_many_values(text):
        return default
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return default
    if text.count("[") + text.count("{") > _MAX_DEPTH and _is_too_deep(value):
        return default
    return value if default is None or isinstance(value, type(default)) else default


def has_too_many_values(text: str) -> bool:
    """Return whether a JSON text may contain more than MAX_VALUES values, estimated without decoding it."""
    return sum(map(text.count, ",[{")) > MAX_VALUES


def _is_too_deep(value: Any) -> bool:
    """Return True if the value was decoded, but is nested too deeply to be encoded again."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [item for container in level if isinstance(container, dict | list) for item in _items(container)]
    return bool(level)


def _items(container: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def raw_members(text: str, *path: str) -> dict[str, msgspec.Raw]:
    """Return the members of the object at this path without decoding them; empty if there is none.

    An array counts as an object with its positions as names.
    """
    found: dict[str, msgspec.Raw] = {}
    raw: str | msgspec.Raw = text
    for name in (*path, None):
        try:
            value = msgspec.json.decode(raw, type=dict[str, msgspec.Raw] | list[msgspec.Raw])
        except (msgspec.MsgspecError, RecursionError):
            return {}
        found = value if isinstance(value, dict) else {str(number): item for number, item in enumerate(value)}
        if name is not None and name not in found:
            return {}
        raw = found[name] if name is not None else raw
    return found


def decode_raw(raw: msgspec.Raw | None, default: Any) -> Any:
    """Decode a value that `raw_members` returned, with the same checks as `decode_json`."""
    return default if raw is None else decode_json(bytes(raw).decode(), default)


def nested_dict(document: Any, *path: str) -> dict[str, Any]:
    """Return the object at this path; empty if there is none."""
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def dicts_in(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; empty if it is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
