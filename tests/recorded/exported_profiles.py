"""Profile events that a live cluster listed, and that Ray sent to the collector.

Ray may lose the last profile events of a worker that exits: the worker reports them to the dashboard, and not to the
collector. A recording with such a loss says nothing about the history, and is made again.
"""

import base64
import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Attempt = tuple[str, int]


def unsent_profiles(store: Path, tasks: list[dict[str, Any]]) -> list[Attempt]:
    """Return the attempts of the live list with more profile events than the store has of them."""
    sent = _sent(store)
    listed = {(row["task_id"], row["attempt_number"]): _events(row.get("profiling_data")) for row in tasks}
    return [attempt for attempt, events in listed.items() if len(events) > sent[attempt]]


def _sent(store: Path) -> Counter[Attempt]:
    found: Counter[Attempt] = Counter()
    for event in _profile_events(store):
        task = base64.b64decode(event["taskId"]).hex()
        found[task, event.get("attemptNumber", 0)] += len(_events(event.get("profileEvents")))
    return found


def _profile_events(store: Path) -> Iterator[dict[str, Any]]:
    for path in store.rglob("*_events/**/*"):
        if path.is_file():
            data = path.read_bytes()
            lines = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
            yield from (json.loads(line)["taskProfileEvents"] for line in lines.splitlines() if b"taskProfile" in line)


def _events(profile: dict[str, Any] | None) -> list[Any]:
    return list((profile or {}).get("events") or [])
