"""Imports point one way, and the collector stays small."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/rayhistory"

ALLOWED = {
    "storage": set(),
    "layout": set(),
    "events": set(),
    "web": set(),
    "access": set(),
    "live": set(),
    "index": {"events", "layout", "storage"},
    "collector": {"events", "layout", "storage"},
    "server": {"access", "live", "index", "events", "layout", "storage", "web"},
    "keeping": {"server", "collector", "index", "events", "layout", "storage"},
    "cli": {"keeping", "server", "index", "collector", "events", "layout", "storage", "web"},
}
"""Which rooms a room may use. What lies beside the rooms (errors, ids, settings, …) is open to all, and uses none."""


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_rooms_use_only_the_rooms_below_them() -> None:
    wrong = []
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0]
        allowed = ALLOWED[room] | {room} if room in ALLOWED else set()
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "rayhistory" and len(parts) > 1 and parts[1] in ALLOWED and parts[1] not in allowed:
                wrong.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert not wrong


def test_the_collector_loads_nothing_that_is_the_servers() -> None:
    """It runs beside other people's training jobs."""
    code = "import sys, rayhistory.collector.main; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"duckdb", "arro3", "jinja2", "rich", "ray", "rayhistory.index", "rayhistory.server", "rayhistory.keeping",
             "rayhistory.cli", "rayhistory.access", "rayhistory.live"}  # fmt: skip
    assert not heavy & set(loaded)
