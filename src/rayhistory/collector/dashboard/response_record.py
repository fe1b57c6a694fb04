"""Encode dashboard responses as event lines, and compute digests to detect changes."""

import base64
import hashlib
import re
import secrets
import time
from datetime import UTC, datetime
from typing import Any

import msgspec

# Ray's arrays of command lines end in thousands of "".
# A run that does not end its array is matched too: trying again at each of its strings would take quadratic time.
_EMPTY_STRINGS = re.compile(rb'(?:,\s*+""){8,}+(\s*+\])?')
# Fields that differ in every response.
_VOLATILE = re.compile(rb'"now": ?[0-9.]+|Autoscaler status: [0-9: .-]+')


def dashboard_response_record(session: str, node: str | None, uri: str, body: bytes, *, only: bool = False) -> bytes:
    """Encode a response as an event of type DASHBOARD_SNAPSHOT. `only` marks sessions that have no events from Ray."""
    now = time.time_ns()
    event = {
        "eventId": base64.b64encode(secrets.token_bytes(28)).decode(),
        "eventType": "DASHBOARD_SNAPSHOT",
        "sourceType": "RAYHISTORY",
        "timestamp": f"{datetime.fromtimestamp(now // 10**9, UTC):%Y-%m-%dT%H:%M:%S}.{now % 10**9:09d}Z",
        "severity": "INFO",
        "message": "",
        "sessionName": session,
        "nodeId": node or "",
        "dashboardSnapshot": {"uri": uri, "body": _as_json(body)} | ({"only": True} if only else {}),
    }
    return msgspec.json.Encoder().encode_lines([event])


def response_digest(body: bytes) -> bytes:
    """Return a digest of a response without its volatile fields."""
    digest, view, start = hashlib.blake2b(), memoryview(body), 0
    for match in _VOLATILE.finditer(body):
        digest.update(view[start : match.start()])
        start = match.end()
    digest.update(view[start:])
    return digest.digest()


def _as_json(body: bytes) -> Any:
    """Return the body as raw JSON on one line, or as a string if it is not JSON."""
    try:
        if not body.isascii():
            body.decode()
        body = _EMPTY_STRINGS.sub(lambda run: b"]" if run[1] else run[0], body)
        if b"\n" in body or b"\r" in body:
            body = msgspec.json.format(body, indent=-1)
        return msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body.decode(errors="replace")
