"""The payloads: CloudEvents with a signature of Standard Webhooks, and messages for Slack."""

import base64
import hashlib
import hmac
from datetime import UTC, datetime
from typing import Any

import msgspec

from rayhistory.notify.notification import Notification

CLOUD_EVENT = "application/cloudevents+json"
_TYPE_PREFIX = "io.rayhistory.run."
_VERBS = {"failed": "failed", "vanished": "was lost", "regressed": "got slower", "recovered": "works again"}
_MAX_TEXT_CHARS = 500


def cloud_event(notification: Notification, server_url: str, *, include_text: bool) -> bytes:
    """Return a CloudEvent in structured mode. Its id stays the same when it is sent again."""
    shown = notification if include_text else msgspec.structs.replace(notification, headline="")
    data: dict[str, Any] = msgspec.to_builtins(shown)
    del data["id"]
    if server_url:
        data["url"] = server_url.rstrip("/") + notification.path
    event = {
        "specversion": "1.0",
        "id": notification.id,
        "source": server_url or "/rayhistory",
        "type": _TYPE_PREFIX + notification.kind,
        "subject": notification.subject,
        "time": datetime.fromtimestamp(_seconds(notification.at_ms), UTC).isoformat().replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "data": data,
    }
    return msgspec.json.encode(event)


def slack_message(notification: Notification, server_url: str, *, include_text: bool) -> bytes:
    """Return a payload for an incoming webhook of Slack, or a compatible one."""
    name = _slack_text(notification.name or notification.cluster)
    lines = [f"*{name}* {_VERBS[notification.kind]} in {_slack_text(notification.namespace)}"]
    if notification.kind == "failed" and notification.new_failure:
        lines[0] += ", as it did not before"
    if notification.kind == "regressed" and notification.duration_ms is not None and notification.baseline_ms:
        took, usual = notification.duration_ms / 1000, notification.baseline_ms / 1000
        lines.append(f"{took:,.0f} s, usually {usual:,.0f} s")
    if notification.code:
        lines.append(f"`{_slack_text(notification.code)}`")
    if include_text and notification.headline:
        lines.append(_slack_text(notification.headline))
    if server_url:
        lines.append(f"<{server_url.rstrip('/')}{_slack_text(notification.path)}|Open the session>")
    return msgspec.json.encode({"text": "\n".join(lines)})


def signature(secret: bytes, event_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of the header `webhook-signature` (Standard Webhooks, v1)."""
    content = b".".join((event_id.encode(), str(timestamp).encode(), body))
    return "v1," + base64.b64encode(hmac.new(secret, content, hashlib.sha256).digest()).decode()


def _slack_text(text: str) -> str:
    """Escape text from a cluster: no links, no mentions, no formatting over several lines."""
    line = " ".join(text.split())[:_MAX_TEXT_CHARS]
    escaped = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("@", "@\u200b").replace("`", "'").replace("*", "∗")


def _seconds(milliseconds: int) -> float:
    """Return seconds within the range of a date, because clocks of clusters may be wrong."""
    return min(max(milliseconds / 1000, 0), 253_402_300_799)
