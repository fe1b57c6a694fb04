"""What is in the store, read with nothing but gzip, JSON and DuckDB: shares no code with the project."""

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

EVENT_FILE = re.compile(r"/(node_events|job_events/[^/]+)/[^/]+-\d{4}-\d{2}-\d{2}-\d{2}-\d+\.jsonl(\.gz)?$")


@dataclass
class Verdict:
    acked: set[str]
    stored: Counter[str]
    tasks: set[str]
    """Tasks of which there is a definition."""
    dropped: int
    received: int
    claimed: int
    """Events that the seals say are stored."""

    @property
    def missing(self) -> set[str]:
        return self.acked - set(self.stored)

    @property
    def twice(self) -> set[str]:
        return {name for name, count in self.stored.items() if count > 1}


def folded_tasks(store: Path) -> list[str]:
    """The tasks that a reader is shown, from the index that the project made, read with nothing but DuckDB."""
    environment = {**os.environ, "LOCAL_STORAGE_DIR": str(store), "RAYHISTORY_CACHE_DIR": str(store / "cache")}
    command = [Path(sys.executable).parent / "rayhistory", "index"]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    files = f"{store}/ray-history/index/*/*/*/*/tasks.*.parquet"
    with duckdb.connect() as database:
        return [task for (task,) in database.execute(f"SELECT task_id FROM read_parquet('{files}')").fetchall()]


def judge(store: Path, acked: set[str]) -> Verdict:
    stored: Counter[str] = Counter()
    tasks: set[str] = set()
    for path in store.rglob("*"):
        if path.is_file() and EVENT_FILE.search(str(path)):
            data = path.read_bytes()
            for line in (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines():
                event = json.loads(line)
                stored[event["eventId"]] += 1
                if task := event.get("taskDefinitionEvent", {}).get("taskId"):
                    tasks.add(task)
    seals = [json.loads(path.read_bytes()) for path in store.glob("ray-history/seals/*/*/*/*.json")]
    return Verdict(
        acked,
        stored,
        tasks,
        dropped=sum(seal.get("dropped", 0) for seal in seals),
        received=sum(seal.get("received", 0) for seal in seals),
        claimed=sum(seal.get("stored", 0) for seal in seals),
    )
