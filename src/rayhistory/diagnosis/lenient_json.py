"""Decode JSON from clusters, which may have any shape and depth. Invalid JSON counts as empty."""

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def decode_or_empty(text: str | None, kind: type[dict[str, T]]) -> dict[str, T]:
    """Decode an object. Return an empty one if the text has another shape or is nested too deeply."""
    try:
        return msgspec.json.decode(text or "{}", type=kind)
    except (msgspec.MsgspecError, RecursionError):
        return {}


def numbers(text: str | None) -> dict[str, float]:
    return decode_or_empty(text, dict[str, float])


def texts(text: str | None) -> dict[str, str]:
    return decode_or_empty(text, dict[str, str])


def members(text: str | None) -> dict[str, Any]:
    return decode_or_empty(text, dict[str, Any])


def objects(text: str | None) -> list[dict[str, Any]]:
    """Return the objects of a JSON array; none if it is anything else."""
    found = decode_or_empty(f'{{"list":{text}}}' if text else None, dict[str, Any]).get("list")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def numbers_of(value: object) -> dict[str, float]:
    """Return the numbers of a decoded object."""
    found = value if isinstance(value, dict) else {}
    return {str(name): float(number) for name, number in found.items() if isinstance(number, int | float)}
