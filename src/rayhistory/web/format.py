"""Format times, sizes, counts and names on pages."""

import re
from datetime import UTC, datetime

from markupsafe import Markup, escape

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_DURATION_UNITS = (("d", _DAY), ("h", _HOUR), ("m", _MINUTE), ("s", _SECOND))
_AGE_UNITS = (
    ("y", 365 * _DAY, 2),
    ("mo", 30 * _DAY, 2),
    ("d", _DAY, 1),
    ("h", _HOUR, 1),
    ("min", _MINUTE, 1),
)
_YEAR_10000_MS = 253_402_300_800_000
_SESSION_NAME = re.compile(r"session_(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)_\d+_\d+")
_MAX_SESSION_NAME_LENGTH = 20
_RUN_KINDS = {
    "rayjob": "RayJob", "rayservice": "RayService", "job": "Job name", "metadata": "Metadata",
    "entrypoint": "Entry point", "cluster": "Cluster",
}  # fmt: skip


def format_duration(milliseconds: int) -> str:
    """Format a duration with its two largest units, as the Ray Dashboard does: `3h 12m`."""
    if milliseconds < _SECOND:
        return "<1s"
    parts: list[str] = []
    rest = milliseconds
    for name, unit in _DURATION_UNITS:
        amount, rest = divmod(rest, unit)
        if amount:
            parts.append(f"{amount}{name}")
        if len(parts) == 2 or (parts and not amount):
            break
    return " ".join(parts)


def format_age(then_ms: int, now_ms: int) -> str:
    """Format the age of a timestamp. A time slightly in the future, by another machine's clock, is "just now"."""
    age = now_ms - then_ms
    for name, unit, minimum in _AGE_UNITS:
        if age >= minimum * unit:
            return f"{age // unit} {name} ago"
    return "just now"


def format_percent(share: float) -> str:
    return f"{share:.0%}" if share in (0, 1) or 0.1 <= share <= 0.995 else f"{share:.1%}"


def format_hours(hours: float) -> str:
    """Format CPU-hours or GPU-hours. Small numbers get more decimal places."""
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.1f}" if hours >= 1 else f"{hours:.2f}" if hours else "0"


def format_short_ms(milliseconds: float) -> str:
    """Format a run time for a narrow cell: `840ms`, `3.2s`, `12m`."""
    if milliseconds < _SECOND:
        return f"{milliseconds:.0f}ms"
    if milliseconds < _MINUTE:
        return f"{milliseconds / _SECOND:.1f}s"
    return f"{milliseconds / _MINUTE:.0f}m" if milliseconds < 2 * _HOUR else f"{milliseconds / _HOUR:.1f}h"


def status_class(status: str) -> str:
    """Return the CSS class of a job's status. Statuses come from clusters and may be any text."""
    return status if status in ("succeeded", "failed", "running", "stopped", "pending") else "other"


def run_kind(kind: str) -> str:
    """Return the label of the property by which runs are grouped: `RayJob`, `Job name`, `Entry point`."""
    return _RUN_KINDS.get(kind, kind)


def format_count(number: int) -> str:
    return f"{number:,}"


def format_utc(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def format_utc_seconds(milliseconds: int) -> str:
    return format_iso(milliseconds).replace("T", " ").removesuffix("Z")


def format_iso(milliseconds: int, timespec: str = "seconds") -> str:
    """Format a time. Clusters may report times that no calendar has."""
    if not 0 <= milliseconds < _YEAR_10000_MS:
        return "unknown time"
    timestamp = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return timestamp.isoformat(timespec=timespec).replace("+00:00", "Z")


def short_session_name(name: str) -> str:
    """Shorten a session name: Ray's names to date and time, other long names in the middle."""
    if match := _SESSION_NAME.fullmatch(name):
        return match[1]
    return name if len(name) <= _MAX_SESSION_NAME_LENGTH else f"{name[:10]}…{name[-9:]}"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def sentence_case(text: str) -> str:
    """Capitalize the first word of an error message, unless it is a name or code."""
    return text[:1].upper() + text[1:] if re.match("[a-z]+ ", text) else text


def code_spans(text: str) -> Markup:
    """Render text in backticks as code, so that the same message works in a terminal and on a page."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return escape(text)
    return Markup().join(
        Markup("<code>{}</code>").format(piece) if position % 2 else escape(piece)
        for position, piece in enumerate(pieces)
    )
