"""Bodies that Ray 2.49, 2.51 and 2.54 posted, captured with a plain HTTP sink, are routed completely."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rayhistory.collector.ingest.event_routing import route_batch
from support.paths import DATA

BODIES = sorted((DATA / "bodies").glob("ray-*.jsonl"))


def bodies(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


def snake(value: Any) -> Any:
    """Rename all fields as Ray does with …_PRESERVE_PROTO_FIELD_NAME."""
    if isinstance(value, dict):
        return {re.sub(r"([A-Z])", lambda m: f"_{m[1].lower()}", name): snake(item) for name, item in value.items()}
    return [snake(item) for item in value] if isinstance(value, list) else value


def events_by_category(body: bytes) -> dict[str, list[Any]]:
    batch = route_batch(body)
    assert batch.malformed == []
    found: dict[str, list[Any]] = {}
    for blocks in batch.blocks.values():
        for block in blocks:
            assert block.data.count(b"\n") == block.lines
            found.setdefault(block.category, []).extend(map(json.loads, block.data.splitlines()))
    return found


def identity(event: dict[str, Any]) -> str:
    return json.dumps(event, sort_keys=True)


@pytest.mark.parametrize("path", BODIES, ids=lambda path: path.stem)
def test_every_event_is_routed_once_and_unchanged(path: Path) -> None:
    for body in bodies(path):
        routed = [event for events in events_by_category(body).values() for event in events]
        assert sorted(map(identity, routed)) == sorted(map(identity, json.loads(body)))


@pytest.mark.parametrize("path", BODIES, ids=lambda path: path.stem)
def test_snake_case_names_are_routed_alike(path: Path) -> None:
    for body in bodies(path):
        other = json.dumps(snake(json.loads(body))).encode()
        expected = {category: len(events) for category, events in events_by_category(body).items()}
        assert {category: len(events) for category, events in events_by_category(other).items()} == expected


@pytest.mark.parametrize("path", BODIES, ids=lambda path: path.stem)
def test_slow_path_routes_like_the_fast_path(path: Path) -> None:
    """One unexpected event, with a number for a string, sends the whole body through the slow path."""
    for body in bodies(path):
        unexpected = {"sessionName": json.loads(body)[0]["sessionName"], "eventType": 7, "unexpected": "ü"}
        slow = events_by_category(json.dumps([*json.loads(body), unexpected], ensure_ascii=False).encode())
        slow["node_events"] = [event for event in slow["node_events"] if "unexpected" not in event]
        fast = events_by_category(body)
        for category in fast | slow:
            assert sorted(map(identity, slow.get(category, []))) == sorted(map(identity, fast.get(category, [])))


def test_recorded_bodies_cover_the_differences_between_ray_versions() -> None:
    """2.49 has its own names and no job id in task executions; only 2.54 has the sender's node id."""
    by_version = {path.stem: [event for body in bodies(path) for event in json.loads(body)] for path in BODIES}
    assert {len(events) > 10 for events in by_version.values()} == {True}
    assert any("taskExecutionEvent" in event for event in by_version["ray-2.49.2"])
    assert any("stateTransitions" in event.get("taskLifecycleEvent", {}) for event in by_version["ray-2.51.1"])
    assert not any("nodeId" in event for event in by_version["ray-2.51.1"])
    assert all(event["nodeId"] for event in by_version["ray-2.54.0"])
    assert "job_events/01000000" in {name for body in bodies(BODIES[-1]) for name in events_by_category(body)}
    assert {node for body in bodies(BODIES[-1]) for node in route_batch(body).nodes.values()}
