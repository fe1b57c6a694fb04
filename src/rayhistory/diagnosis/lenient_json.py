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
