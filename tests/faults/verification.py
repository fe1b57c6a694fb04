"""Verification of a scenario: compares what was sent and written with what is stored and indexed.

Shares no code with the project. Objects are read with gzip and JSON, packs by `pack_parser`, indexes with DuckDB.
"""

import gzip
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb

from faults.index_tables import latest_manifest, table_source
from faults.log_writer import LogVersion
from faults.pack_parser import EVENTS, LOG, StoredStream, read_streams
from faults.verified_entities import check_entities, from_base64, to_ms
from faults.workload import STATES


@dataclass(frozen=True)
class ExpectedAttempt:
    state: str
    name: str | None
    error: str | None
    inferred: bool
    """The state was inferred at session end."""
    node: str | None
    worker: str | None
    start_ms: int | None
    end_ms: int | None
    """None if it was inferred."""


TaskStates = dict[tuple[str, int], ExpectedAttempt]
"""By task id and attempt."""
MAX_CLOCK_SKEW_S = 600
EVENT_FILE = re.compile(r"/([^/]+)/(?:node_events|job_events/[^/]+)/[^/]+\.jsonl(\.gz)?$")


@dataclass
class StoredSession:
    """The stored events, log streams and seals of one session."""

    objects: dict[str, Counter[str]] = field(default_factory=dict)
    """Copies of each event in event objects, by node and event id."""
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Events in event objects and packs, by event id."""
    streams: dict[str, list[StoredStream]] = field(default_factory=dict)
    """Streams in packs, by node."""
    seals: dict[str, dict[str, Any]] = field(default_factory=dict)
    ended: bool = False

    def in_packs(self, node: str) -> set[str]:
        return {event["eventId"] for stream in self.streams.get(node, ()) for event in _events_in(stream)}


def read_session(store: Path, cluster: str, session: str) -> StoredSession:
    stored = StoredSession()
    for path in _files_below(store / "cluster-history" / "raycluster" / "default" / cluster / session):
        if match := EVENT_FILE.search(str(path)):
            data = path.read_bytes()
            for line in (gzip.decompress(data) if match[2] else data).splitlines():
                event = json.loads(line)
                stored.objects.setdefault(match[1], Counter())[event["eventId"]] += 1
                stored.events[event["eventId"]] = event
    history = store / "ray-history"
    for node in _folders(history / "logs" / "default" / cluster / session):
        stored.streams[node.name] = read_streams(node)
        for stream in stored.streams[node.name]:
            stored.events |= {event["eventId"]: event for event in _events_in(stream)}
    for path in (history / "seals" / "default" / cluster / session).glob("[!.]*.json"):
        stored.seals[path.stem] = json.loads(path.read_bytes())
    stored.ended = (history / "sessions" / "default" / cluster / session / "end.json").exists()
    return stored


def _events_in(stream: StoredStream) -> Iterator[dict[str, Any]]:
    """Yield Ray's events. Other members of event streams are dashboard responses."""
    if stream.kind == EVENTS and stream.content:
        for line in gzip.decompress(stream.content).splitlines():
            event = json.loads(line)
            if "eventId" in event and "sourceType" in event:
                yield event


def _files_below(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()] if directory.exists() else []


def _folders(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.exists() else []


# Events


def check_events(stored: StoredSession, required: set[str], sent: Counter[str]) -> Iterator[str]:
    if lost := required - stored.events.keys():
        yield f"{len(lost)} of {len(required)} acked events are lost"
    if unexpected := stored.events.keys() - sent.keys():
        yield f"{len(unexpected)} events were never sent"
    total: Counter[str] = sum(stored.objects.values(), Counter())
    if repeated := [name for name, count in total.items() if count > sent[name]]:
        yield f"{len(repeated)} events are stored more often than they were sent"


def check_seal(stored: StoredSession, node: str, *, exact: bool) -> Iterator[str]:
    """Compare the counts in a node's seal with the store. Counts are not exact after disk faults."""
    seal = stored.seals.get(node)
    if seal is None:
        yield f"{node[:8]} has no seal"
        return
    found = stored.objects.get(node, Counter()).total()
    received, reported = seal.get("received", 0), seal.get("stored", 0)
    if received != reported or (received != found if exact else received > found):
        yield f"{node[:8]} reports {received} received and {reported} stored, and {found} are in the store"
    for name in ("dropped", "set_aside", "left_behind"):
        if seal.get(name):
            yield f"{node[:8]} reports {name}: {seal[name]}"
    if in_packs_only := stored.in_packs(node) - stored.objects.get(node, Counter()).keys():
        yield f"{len(in_packs_only)} events of {node[:8]} are in packs only, after a clean end"


# Logs


def check_logs(stored: StoredSession, node: str, versions: list[LogVersion]) -> Iterator[str]:
    """Check that each log version is stored once and completely, or up to its confirmed bytes if truncated."""
    streams = [stream for stream in stored.streams.get(node, ()) if stream.kind == LOG]
    for version in versions:
        found = [stream for stream in streams if stream.content.startswith(version.header)]
        if len(found) > 1:
            yield f"{version.name} of {node[:8]} is stored {len(found)} times: {[stream.name for stream in found]}"
        content = found[0].content if found else b""
        if not version.content.startswith(content):
            yield f"{version.name} of {node[:8]} has bytes that were never written"
        required = len(version.content) if version.complete else version.confirmed_bytes
        if len(content) < required:
            yield f"{required - len(content)} of {len(version.content)} bytes of {version.name} of {node[:8]} are lost"
    for stream in streams:
        if stream.content and not any(version.content.startswith(stream.content) for version in versions):
            yield f"{stream.name} of {node[:8]} is not a file that was written"


def check_whole_files(store: Path, cluster: str, session: str, node: str, files: dict[str, bytes]) -> Iterator[str]:
    """Check the whole log files, which a clean end writes beside the packs."""
    directory = store / "cluster-history" / "raycluster" / "default" / cluster / session / node / "logs"
    for name, content in files.items():
        path = directory / name
        if not path.exists():
            yield f"{name} of {node[:8]} is missing as a whole file"
        elif path.read_bytes() != content:
            yield f"{name} of {node[:8]} differs from the file on the node"


# Index


def expected_tasks(stored: StoredSession) -> TaskStates:
    """Derive the final state of every task attempt from its events, in any order."""
    reports: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for event in stored.events.values():
        if nested := event.get("taskDefinitionEvent") or event.get("taskLifecycleEvent"):
            key = (from_base64(nested["taskId"]), nested.get("taskAttempt", 0))
            reports.setdefault(key, []).append({**nested, "sent": event["timestamp"]})
    return {key: _expected_attempt(found) for key, found in reports.items()}


def _expected_attempt(reports: list[dict[str, Any]]) -> "ExpectedAttempt":
    times: dict[str, list[int]] = {}
    for report in reports:
        for change in report.get("stateTransitions", ()):
            times.setdefault(change["state"], []).append(to_ms(change["timestamp"]))
    highest = max((STATES.index(state) for state in times), default=-1)
    inferred = highest < STATES.index("FINISHED")
    placed = max((report for report in reports if "workerId" in report), key=_placed_at, default={})
    end = times.get("FAILED") or times.get("FINISHED") or []
    return ExpectedAttempt(
        state="FAILED" if inferred else STATES[highest],
        name=next((report["taskName"] for report in reports if "taskName" in report), None),
        error=next((report["rayErrorInfo"]["errorMessage"] for report in reports if "rayErrorInfo" in report), None),
        inferred=inferred,
        node=from_base64(placed["nodeId"]) if placed else None,
        worker=from_base64(placed["workerId"]) if placed else None,
        start_ms=min(times["RUNNING"]) if "RUNNING" in times else None,
        end_ms=None if inferred else min(end, default=None),
    )


def _placed_at(report: dict[str, Any]) -> str:
    """Return when the owner submitted the attempt to that worker; times are texts that sort."""
    submitted = [c["timestamp"] for c in report["stateTransitions"] if c["state"] == "SUBMITTED_TO_WORKER"]
    return str(min(submitted, default=report["sent"]))


def check_index(store: Path, cluster: str, session: str, stored: StoredSession) -> Iterator[str]:
    directory = store / "ray-history" / "index" / "default" / cluster / session
    expected = expected_tasks(stored)
    manifest = latest_manifest(directory)
    if not manifest:
        yield "the index is missing"
        return
    source = table_source(directory, manifest, "tasks")
    columns = "state, name, error_message, closed_by_history, node_id, worker_id, start_time_ms, end_time_ms"
    with duckdb.connect() as database:
        rows = database.execute(f"SELECT task_id, attempt_number, {columns} FROM {source}").fetchall()
    indexed = {(row[0], row[1]): ExpectedAttempt(*row[2:]) for row in rows}
    yield from check_entities(directory, manifest, stored.events.values())
    if (manifest["last_ns"] or 0) > (time.time() + MAX_CLOCK_SKEW_S) * 1e9:
        yield "the session's last sign of life is in the future"
    if len(rows) != len(indexed):
        yield f"{len(rows) - len(indexed)} attempts are indexed twice"
    if missing := expected.keys() - indexed.keys():
        yield f"{len(missing)} of {len(expected)} attempts are not indexed"
    if unexpected := indexed.keys() - expected.keys():
        yield f"{len(unexpected)} indexed attempts do not exist"
    wrong = [key for key in expected.keys() & indexed.keys() if not _matches(expected[key], indexed[key])]
    if wrong:
        yield f"{len(wrong)} attempts are indexed wrong, as {indexed[wrong[0]]} instead of {expected[wrong[0]]}"


def _matches(expected: ExpectedAttempt, indexed: ExpectedAttempt) -> bool:
    """Compare two attempts, except what a state that was inferred at session end has instead of an event's."""
    if expected.inferred:
        indexed = replace(indexed, error=expected.error, end_ms=None)
    return replace(indexed, name=expected.name or indexed.name, inferred=bool(indexed.inferred)) == replace(
        expected, name=expected.name or indexed.name
    )
