"""Mask the values of environment variables in runtime environments, anywhere in JSON."""

import json
import re
from typing import Any

import msgspec

MASK = "<redacted>"
_ENV_VARS = ("env_vars", "envVars")
_HAS_ENV_VARS = re.compile(rb"env_?[vV]ars")


def mask_env_vars(value: Any) -> Any:
    """Replace the values of environment variables at any depth, including JSON inside of text."""
    try:
        return _masked(value)
    except RecursionError:
        return MASK


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: dict.fromkeys(item, MASK) if key in _ENV_VARS and isinstance(item, dict) else _masked(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_masked(item) for item in value]
    if isinstance(value, str) and any(name in value for name in _ENV_VARS):
        return _mask_nested_json(value)
    return value


def _mask_nested_json(text: str) -> str:
    """Mask text that is a JSON object or array, such as a serialized runtime environment. Other text is not changed."""
    if text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        return msgspec.json.encode(_masked(msgspec.json.decode(text))).decode()
    except (msgspec.DecodeError, UnicodeError):
        return text


def mask_env_vars_json(serialized: str | None) -> str | None:
    """Mask a runtime environment stored as JSON text, with Ray's spacing. If it cannot be parsed, hide all of it."""
    if not serialized or not any(name in serialized for name in _ENV_VARS):
        return serialized
    try:
        return json.dumps(_masked(msgspec.json.decode(serialized)))
    except (msgspec.DecodeError, RecursionError):
        return MASK


def mask_env_vars_in_lines(data: bytes) -> bytes:
    """Mask every line that is JSON. Lines without environment variables are not decoded."""
    if not _HAS_ENV_VARS.search(data):
        return data
    return b"\n".join(_masked_line(line) if _HAS_ENV_VARS.search(line) else line for line in data.split(b"\n"))


def _masked_line(line: bytes) -> bytes:
    try:
        return msgspec.json.encode(_masked(msgspec.json.decode(line)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return line
