"""The events and seals in a store, read with gzip, JSON and DuckDB. Shares no code with the project."""

import gzip
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import duckdb

from faults.index_tables import latest_manifest, table_source

EVENT_FILE = re.compile(r"/(node_events|job_events/[^/]+)/[^/]+-\d{4}-\d{2}-\d{2}-\d{2}-\d+\.jsonl(\.gz)?$")


@dataclass
class StoredState:
    acked: set[str]
    event_counts: Counter[str]
    """Copies of each event, by event id."""
    tasks: set[str]
    """Ids of tasks that have a definition event."""
    dropped: int
    received: int
    sealed_as_stored: int
    """Events that the seals report as stored."""

    @property
    def missing(self) -> set[str]:
        return self.acked - set(self.event_counts)

    @property
    def duplicates(self) -> set[str]:
        return {name for name, count in self.event_counts.items() if count > 1}


def index_and_read_tasks(store: Path) -> list[str]:
    """Index the store with the project, and read the task ids of the index with DuckDB."""
    environment = {**os.environ, "LOCAL_STORAGE_DIR": str(store), "RAYHISTORY_CACHE_DIR": str(store / "cache")}
    command: list[str | Path] = [Path(sys.executable).parent / "rayhistory", "index"]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    found: list[str] = []
    with duckdb.connect() as database:
        for index in store.glob("ray-history/index/*/*/*"):
            manifest = latest_manifest(index)
            assert manifest
            source = table_source(index, manifest, "tasks")
            found += [task for (task,) in database.execute(f"SELECT task_id FROM {source}").fetchall()]
    return found


def read_state(store: Path, acked: set[str]) -> StoredState:
    event_counts: Counter[str] = Counter()
    tasks: set[str] = set()
    for path in store.rglob("*"):
        if path.is_file() and EVENT_FILE.search(str(path)):
            data = path.read_bytes()
            for line in (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines():
                event = json.loads(line)
                event_counts[event["eventId"]] += 1
                if task := event.get("taskDefinitionEvent", {}).get("taskId"):
                    tasks.add(task)
    seals = [json.loads(path.read_bytes()) for path in store.glob("ray-history/seals/*/*/*/*.json")]
    return StoredState(
        acked,
        event_counts,
        tasks,
        dropped=sum(seal.get("dropped", 0) for seal in seals),
        received=sum(seal.get("received", 0) for seal in seals),
        sealed_as_stored=sum(seal.get("stored", 0) for seal in seals),
    )
