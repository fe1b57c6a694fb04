"""Convert events that do not fit the types in `event_types`: unknown fields, snake_case, numbers for text."""

import re
import types
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Raw

from rayhistory.events.event_types import Event

_SNAKE_CASE = re.compile(r"_([a-z0-9])")
_MAX_FIELD_NAME_LENGTH = 200
_type_hints: dict[type, dict[str, Any]] = {}


def convert_event(document: object, unknown_fields: set[str]) -> Event:
    """Convert a decoded JSON object of any shape. The paths of unknown fields are added to `unknown_fields`."""
    return _convert(document, Event, "", unknown_fields)  # type: ignore[no-any-return]


def _camel_case(name: str) -> str:
    return _SNAKE_CASE.sub(lambda match: match[1].upper(), name)


def _convert(value: object, target: Any, path: str, unknown_fields: set[str]) -> Any:
    if get_origin(target) in (Union, types.UnionType):
        inner = next(arg for arg in get_args(target) if arg is not type(None))
        return None if value is None else _convert(value, inner, path, unknown_fields)
    if isinstance(target, type) and issubclass(target, msgspec.Struct):
        return _convert_struct(value, target, path, unknown_fields)
    if get_origin(target) is list:
        inner = get_args(target)[0]
        return [_convert(item, inner, path, unknown_fields) for item in value] if isinstance(value, list) else []
    if get_origin(target) is dict:
        inner = get_args(target)[1]
        items = value.items() if isinstance(value, dict) else ()
        return {str(key): _convert(item, inner, path, unknown_fields) for key, item in items}
    if target is Raw:
        return Raw(msgspec.json.encode(value))
    return _convert_scalar(value, target)


def _convert_struct(value: object, target: type[msgspec.Struct], path: str, unknown_fields: set[str]) -> Any:
    if not isinstance(value, dict):
        return target()
    hints = _type_hints.setdefault(target, get_type_hints(target))
    names = {field.encode_name: field.name for field in msgspec.structs.fields(target)}
    fields = {}
    for key, item in value.items():
        name = names.get(key) or names.get(_camel_case(str(key)))
        if name is None:
            unknown_fields.add(f"{path}{key}"[:_MAX_FIELD_NAME_LENGTH])
        elif item is not None:
            fields[name] = _convert(item, hints[name], f"{path}{_camel_case(str(key))}.", unknown_fields)
    return target(**fields)


def _convert_scalar(value: object, target: type) -> object:
    if target is bool:
        return value if isinstance(value, bool) else str(value).lower() in {"true", "1"}
    if target is str:
        if isinstance(value, bool):
            return str(value).lower()
        return value if isinstance(value, str) else str(value) if isinstance(value, int | float) else ""
    try:
        return target(value)
    except (TypeError, ValueError, OverflowError):
        return target()
