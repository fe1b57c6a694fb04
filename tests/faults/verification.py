"""Whether a day was survived: what was sent and written against what is in the store, and what a reader is shown.

Shares no code with the project. Objects are read with gzip and JSON, packs by `packfiles`, indexes with DuckDB.
"""

import base64
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from faults.logwriters import Life
from faults.packfiles import EVENTS, LOG, Stored, read_streams
from faults.workload import STATES

Shown = dict[tuple[str, int], tuple[str, str | None, str | None, bool]]
"""By task and attempt: state, name, error, and whether history had to close it."""
EVENT_FILE = re.compile(r"/([^/]+)/(?:node_events|job_events/[^/]+)/[^/]+\.jsonl(\.gz)?$")


@dataclass
class Kept:
    """What is in the store of one session."""

    objects: dict[str, Counter[str]] = field(default_factory=dict)
    """Events by node: how often each is there."""
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    streams: dict[str, list[Stored]] = field(default_factory=dict)
    """Of packs, by node."""
    seals: dict[str, dict[str, Any]] = field(default_factory=dict)
    ended: bool = False

    def in_packs(self, node: str) -> set[str]:
        return {event["eventId"] for stream in self.streams.get(node, ()) for event in _lines_of(stream)}


def read_session(store: Path, cluster: str, session: str) -> Kept:
    kept = Kept()
    for path in _below(store / "cluster-history" / "raycluster" / "default" / cluster / session):
        if match := EVENT_FILE.search(str(path)):
            data = path.read_bytes()
            for line in (gzip.decompress(data) if match[2] else data).splitlines():
                event = json.loads(line)
                kept.objects.setdefault(match[1], Counter())[event["eventId"]] += 1
                kept.events[event["eventId"]] = event
    ours = store / "ray-history"
    for node in _folders(ours / "logs" / "default" / cluster / session):
        kept.streams[node.name] = read_streams(node)
        for stream in kept.streams[node.name]:
            kept.events |= {event["eventId"]: event for event in _lines_of(stream)}
    for path in (ours / "seals" / "default" / cluster / session).glob("[!.]*.json"):
        kept.seals[path.stem] = json.loads(path.read_bytes())
    kept.ended = (ours / "sessions" / "default" / cluster / session / "end.json").exists()
    return kept


def _lines_of(stream: Stored) -> Iterator[dict[str, Any]]:
    """Members of a kind that begins with "snapshots" are answers of the dashboard, not events of Ray."""
    if stream.kind == EVENTS and stream.content:
        for line in gzip.decompress(stream.content).splitlines():
            event = json.loads(line)
            if "eventId" in event and "sourceType" in event:
                yield event


def _below(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()] if directory.exists() else []


def _folders(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.exists() else []


# Events


def check_events(kept: Kept, must: set[str], sent: Counter[str]) -> Iterator[str]:
    if lost := must - kept.events.keys():
        yield f"{len(lost)} of {len(must)} acknowledged events are lost"
    if strange := kept.events.keys() - sent.keys():
        yield f"{len(strange)} events were never sent"
    total: Counter[str] = sum(kept.objects.values(), Counter())
    if often := [name for name, count in total.items() if count > sent[name]]:
        yield f"{len(often)} events are stored more often than they were sent"


def check_seal(kept: Kept, node: str, *, exact: bool) -> Iterator[str]:
    """What the node's collector says of itself is what is there; `exact` is not to be had from a disk that failed."""
    seal = kept.seals.get(node)
    if seal is None:
        yield f"{node[:8]} has no seal"
        return
    there = kept.objects.get(node, Counter()).total()
    received, stored = seal.get("received", 0), seal.get("stored", 0)
    if received != stored or (received != there if exact else received > there):
        yield f"{node[:8]} says {received} received and {stored} stored, and {there} are there"
    for name in ("dropped", "set_aside", "left_behind"):
        if seal.get(name):
            yield f"{node[:8]} says {name}: {seal[name]}"
    if open_ones := kept.in_packs(node) - kept.objects.get(node, Counter()).keys():
        yield f"{len(open_ones)} events of {node[:8]} are in packs only, after a clean end"


# Logs


def check_logs(kept: Kept, node: str, lives: list[Life]) -> Iterator[str]:
    """Every byte of every file that was not cut, once."""
    streams = [stream for stream in kept.streams.get(node, ()) if stream.kind == LOG]
    for life in lives:
        found = [stream for stream in streams if stream.content.startswith(life.mark)]
        if len(found) > 1:
            yield f"{life.name} of {node[:8]} is there {len(found)} times: {[stream.name for stream in found]}"
        content = found[0].content if found else b""
        if not life.content.startswith(content):
            yield f"{life.name} of {node[:8]} has bytes that were never written"
        least = len(life.content) if life.whole else life.settled
        if len(content) < least:
            yield f"{least - len(content)} of {len(life.content)} bytes of {life.name} of {node[:8]} are lost"
    for stream in streams:
        if stream.content and not any(life.content.startswith(stream.content) for life in lives):
            yield f"{stream.name} of {node[:8]} is no file that there was"


def check_plain(store: Path, cluster: str, session: str, node: str, files: dict[str, bytes]) -> Iterator[str]:
    """After a clean end, each file is also there as a whole."""
    place = store / "cluster-history" / "raycluster" / "default" / cluster / session / node / "logs"
    for name, content in files.items():
        path = place / name
        if not path.exists():
            yield f"{name} of {node[:8]} is not there as a whole file"
        elif path.read_bytes() != content:
            yield f"{name} of {node[:8]} is not as it was at the end"


# What is shown


def folded(kept: Kept) -> Shown:
    """Every attempt of every task, from events in any order."""
    reached: dict[tuple[str, int], int] = {}
    names: dict[tuple[str, int], str] = {}
    errors: dict[tuple[str, int], str] = {}
    for event in kept.events.values():
        nested = event.get("taskDefinitionEvent") or event["taskLifecycleEvent"]
        key = (base64.b64decode(nested["taskId"]).hex(), nested.get("taskAttempt", 0))
        states = [STATES.index(each["state"]) for each in nested.get("stateTransitions", ())]
        reached[key] = max([reached.get(key, -1), *states])
        if "taskName" in nested:
            names[key] = nested["taskName"]
        if "rayErrorInfo" in nested:
            errors[key] = nested["rayErrorInfo"]["errorMessage"]
    return {
        key: (
            STATES[highest] if highest >= STATES.index("FINISHED") else "FAILED",
            names.get(key),
            errors.get(key),
            highest < STATES.index("FINISHED"),
        )
        for key, highest in reached.items()
    }


def check_index(store: Path, cluster: str, session: str, kept: Kept) -> Iterator[str]:
    place = store / "ray-history" / "index" / "default" / cluster / session
    expected = folded(kept)
    generations = sorted(place.glob("manifest-*.json"), key=lambda path: int(path.stem.partition("-")[2]))
    if not generations:
        yield "there is no index"
        return
    manifest = json.loads(generations[-1].read_bytes())
    files = place / manifest["build"] / "tasks.*.parquet"
    wanted = "task_id, attempt_number, state, name, error_message, closed_by_history"
    with duckdb.connect() as database:
        rows = database.execute(f"SELECT {wanted} FROM read_parquet('{files}')").fetchall()
    shown = {(row[0], row[1]): tuple(row[2:]) for row in rows}
    if len(rows) != len(shown):
        yield f"{len(rows) - len(shown)} attempts are shown twice"
    if missing := expected.keys() - shown.keys():
        yield f"{len(missing)} of {len(expected)} attempts are not shown"
    if strange := shown.keys() - expected.keys():
        yield f"{len(strange)} attempts are shown that there never were"
    wrong = [key for key in expected.keys() & shown.keys() if not _agree(expected[key], shown[key])]
    if wrong:
        yield f"{len(wrong)} attempts are shown wrong, as {shown[wrong[0]]} for {expected[wrong[0]]}"


def _agree(expected: tuple[Any, ...], shown: tuple[Any, ...]) -> bool:
    """An attempt that history had to close has an error text of its own."""
    state, name, error, closed = expected
    return (
        shown[0] == state
        and (shown[1] == name or name is None)
        and bool(shown[3]) == closed
        and (closed or shown[2] == error)
    )
