"""What is in the store, read with nothing but gzip and JSON: shares no code with the project."""

import gzip
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

EVENT_FILE = re.compile(r"/(node_events|job_events/[^/]+)/[^/]+-\d{4}-\d{2}-\d{2}-\d{2}-\d+\.jsonl(\.gz)?$")


@dataclass
class Verdict:
    acked: set[str]
    stored: Counter[str]
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


def judge(store: Path, acked: set[str]) -> Verdict:
    stored: Counter[str] = Counter()
    for path in store.rglob("*"):
        if path.is_file() and EVENT_FILE.search(str(path)):
            data = path.read_bytes()
            for line in (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines():
                stored[json.loads(line)["eventId"]] += 1
    seals = [json.loads(path.read_bytes()) for path in store.glob("ray-history/sessions/*/*/*/nodes/*.json")]
    return Verdict(
        acked,
        stored,
        dropped=sum(seal.get("dropped", 0) for seal in seals),
        received=sum(seal.get("received", 0) for seal in seals),
        claimed=sum(seal.get("stored", 0) for seal in seals),
    )
