"""What Ray 2.49, 2.51 and 2.54 really posted (captured with a plain HTTP sink) is taken whole, in both spellings."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rayhistory.collector.routing import sort

BODIES = sorted(Path(__file__).parents[1].joinpath("data", "bodies").glob("ray-*.jsonl"))


def bodies(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


def snake(value: Any) -> Any:
    """As Ray sends it with …_PRESERVE_PROTO_FIELD_NAME."""
    if isinstance(value, dict):
        return {re.sub(r"([A-Z])", lambda m: f"_{m[1].lower()}", name): snake(item) for name, item in value.items()}
    return [snake(item) for item in value] if isinstance(value, list) else value


def lines(body: bytes) -> dict[str, list[Any]]:
    """Events per category."""
    batch = sort(body)
    assert batch.broken == []
    found: dict[str, list[Any]] = {}
    for blocks in batch.blocks.values():
        for block in blocks:
            assert block.data.count(b"\n") == block.lines
            found.setdefault(block.category, []).extend(map(json.loads, block.data.splitlines()))
    return found


def identity(event: dict[str, Any]) -> str:
    return json.dumps(event, sort_keys=True)


@pytest.mark.parametrize("path", BODIES, ids=lambda path: path.stem)
def test_every_event_is_kept_as_it_came(path: Path) -> None:
    """None is set aside, none is changed, and each is filed once."""
    for body in bodies(path):
        kept = [event for events in lines(body).values() for event in events]
        assert sorted(map(identity, kept)) == sorted(map(identity, json.loads(body)))


@pytest.mark.parametrize("path", BODIES, ids=lambda path: path.stem)
def test_the_other_spelling_is_filed_alike(path: Path) -> None:
    """Names as in Ray's protocol files."""
    for body in bodies(path):
        other = json.dumps(snake(json.loads(body))).encode()
        expected = {category: len(events) for category, events in lines(body).items()}
        assert {category: len(events) for category, events in lines(other).items()} == expected


@pytest.mark.parametrize("path", BODIES, ids=lambda path: path.stem)
def test_an_odd_neighbour_changes_nothing(path: Path) -> None:
    """One number where a string is expected, and a whole body is read in the slow way: with the same outcome."""
    for body in bodies(path):
        odd = {"sessionName": json.loads(body)[0]["sessionName"], "eventType": 7, "odd": "ü"}
        slow = lines(json.dumps([*json.loads(body), odd], ensure_ascii=False).encode())
        slow["node_events"] = [event for event in slow["node_events"] if "odd" not in event]
        fast = lines(body)
        for category in fast | slow:
            assert sorted(map(identity, slow.get(category, []))) == sorted(map(identity, fast.get(category, [])))


def test_what_is_known_of_the_versions_is_in_the_fixtures() -> None:
    """2.49 has its own names and no job in its executions; only 2.54 tells the sender's node."""
    by_version = {path.stem: [event for body in bodies(path) for event in json.loads(body)] for path in BODIES}
    assert {len(events) > 10 for events in by_version.values()} == {True}
    assert any("taskExecutionEvent" in event for event in by_version["ray-2.49.2"])
    assert any("stateTransitions" in event.get("taskLifecycleEvent", {}) for event in by_version["ray-2.51.1"])
    assert not any("nodeId" in event for event in by_version["ray-2.51.1"])
    assert all(event["nodeId"] for event in by_version["ray-2.54.0"])
    assert "job_events/01000000" in {name for body in bodies(BODIES[-1]) for name in lines(body)}
    assert {node for body in bodies(BODIES[-1]) for node in sort(body).nodes.values()}
