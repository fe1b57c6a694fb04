"""Verification of indexed nodes, jobs, workers and actors. Shares no code with the project."""

import base64
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb

from faults.index_tables import Manifest, table_source

Row = tuple[Any, ...]
Events = Iterable[dict[str, Any]]
DRIVER_WORKER_SUFFIX = "f" * 48
"""Workers that stand for a driver have no events of their own."""
QUERIES = {
    "nodes": "node_id, closed_by_history, start_time_ms, CASE WHEN NOT closed_by_history THEN end_time_ms END, "
    "CASE WHEN NOT closed_by_history THEN state_message END",
    "jobs": "job_id, closed_by_history, start_time, CASE WHEN NOT closed_by_history THEN end_time END",
    "workers": "worker_id, closed_by_history, start_time_ms, CASE WHEN NOT closed_by_history THEN end_time_ms END, "
    "exit_type, node_id",
    "actors": "actor_id, closed_by_history, CASE WHEN NOT closed_by_history THEN end_time_ms END, death_cause, "
    "num_restarts, node_id, worker_id, pid, state",
}


def check_entities(index: Path, manifest: Manifest, events: Events) -> Iterator[str]:
    """Compare states, times and places of everything but tasks."""
    expected = expected_entities(events)
    with duckdb.connect() as database:
        for table, columns in QUERIES.items():
            source = table_source(index, manifest, table)
            found = {row[0]: row[1:] for row in database.execute(f"SELECT {columns} FROM {source}").fetchall()}
            if table == "workers":
                found = {key: row for key, row in found.items() if not key.endswith(DRIVER_WORKER_SUFFIX)}
            if table == "actors":
                found = {key: (*row[:2], _death_message(row[2]), *row[3:]) for key, row in found.items()}
            if found.keys() != expected[table].keys():
                yield f"{len(found)} {table} are indexed, {len(expected[table])} were stored"
            wrong = [key for key in found.keys() & expected[table].keys() if found[key] != expected[table][key]]
            if wrong:
                key = wrong[0]
                yield f"{len(wrong)} {table} are indexed wrong, as {found[key]} instead of {expected[table][key]}"


def expected_entities(events: Events) -> dict[str, dict[str, Row]]:
    """Return the expected rows of each table by id, without the id."""
    reports: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for event in events:
        for table, name, key in _MESSAGES:
            if message := event.get(name):
                reports.setdefault(table, {}).setdefault(from_base64(message[key]), []).append(
                    {**message, "order": int(event["message"] or 0)}
                )
    return {
        table: {key: expect(found) for key, found in reports.get(table, {}).items()}
        for table, expect in _EXPECTATIONS.items()
    }


_MESSAGES = [
    (f"{kind}s", f"{prefix}{kind.capitalize() if prefix else kind}{part}Event", f"{kind}Id")
    for kind, prefix in (("node", ""), ("worker", ""), ("actor", ""), ("job", "driver"))
    for part in ("Definition", "Lifecycle")
]


def _transitions(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the transitions in their true order, which the times do not show."""
    ordered = sorted(reports, key=lambda report: report["order"])
    return [change for report in ordered for change in report.get("stateTransitions", ())]


def _time_of(changes: list[dict[str, Any]], state: str) -> int | None:
    return min((to_ms(change["timestamp"]) for change in changes if change["state"] == state), default=None)


def _expected_node(reports: list[dict[str, Any]]) -> Row:
    changes = _transitions(reports)
    deaths = [change["deathInfo"]["reasonMessage"] for change in changes if change["state"] == "DEAD"]
    message = f"Unexpected termination: {deaths[0]}" if deaths else None
    return not deaths, _time_of(changes, "ALIVE"), _time_of(changes, "DEAD"), message


def _expected_job(reports: list[dict[str, Any]]) -> Row:
    changes = _transitions(reports)
    end = _time_of(changes, "FINISHED")
    return end is None, _time_of(changes, "CREATED"), end


def _expected_worker(reports: list[dict[str, Any]]) -> Row:
    changes = _transitions(reports)
    end = _time_of(changes, "DEAD")
    node = next(from_base64(report["nodeId"]) for report in reports if "nodeId" in report)
    return end is None, _time_of(changes, "ALIVE"), end, "SYSTEM_ERROR" if end is not None else None, node


def _expected_actor(reports: list[dict[str, Any]]) -> Row:
    changes = _transitions(reports)
    last = changes[-1]
    is_dead = last["state"] == "DEAD"
    place = max((c for c in changes if c["state"] == "ALIVE"), key=lambda change: change["timestamp"])
    return (
        not is_dead,
        to_ms(last["timestamp"]) if is_dead else None,
        last["deathCause"]["actorDiedErrorContext"]["errorMessage"] if is_dead else None,
        sum(change["state"] == "RESTARTING" for change in changes),
        from_base64(place["nodeId"]),
        from_base64(place["workerId"]),
        place["pid"],
        "DEAD",
    )


_EXPECTATIONS = {
    "nodes": _expected_node,
    "jobs": _expected_job,
    "workers": _expected_worker,
    "actors": _expected_actor,
}


def _death_message(cause: str | None) -> str | None:
    return json.loads(cause)["actor_died_error_context"]["error_message"] if cause else None


def from_base64(encoded: str) -> str:
    return base64.b64decode(encoded).hex()


def to_ms(timestamp: str) -> int:
    seconds = datetime.strptime(timestamp[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp()
    return int(seconds) * 1000 + int(timestamp[20:23])
