"""Redact values of environment variables for browsers, as Ray 2.60 does; command lines and SDKs get them."""

from typing import Any

import msgspec
from starlette.requests import HTTPConnection

MASK = "<redacted>"
_BROWSER_HEADERS = ("referer", "origin")
_BROWSER_HEADER_PREFIXES = ("sec-fetch-", "access-control-request-")


def is_browser(request: HTTPConnection) -> bool:
    if request.headers.get("user-agent", "").startswith("Mozilla"):
        return True
    return any(name in _BROWSER_HEADERS or name.startswith(_BROWSER_HEADER_PREFIXES) for name in request.headers)


def mask_env_vars(runtime_env: Any) -> Any:
    """Replace the values of a runtime environment's variables."""
    if isinstance(runtime_env, dict) and isinstance(runtime_env.get("env_vars"), dict):
        return {**runtime_env, "env_vars": dict.fromkeys(runtime_env["env_vars"], MASK)}
    return runtime_env


def mask_env_vars_json(serialized: str | None) -> str | None:
    """Replace the values of environment variables in a runtime environment that is stored as JSON text."""
    if not serialized or "env_vars" not in serialized:
        return serialized
    try:
        return msgspec.json.encode(mask_env_vars(msgspec.json.decode(serialized))).decode()
    except (msgspec.DecodeError, RecursionError):
        return MASK
