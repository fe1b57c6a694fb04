"""The store and the spool that release 0.1.0 wrote, and the responses that it gave (tests/data/store-0.1.0)."""

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

from support.paths import DATA

FIXTURE = DATA / "store-0.1.0"
NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"
ENDED = "session_2026-11-15_19-18-08_055078_15551"
OWNED = "session_2026-11-15_20-00-00_000000_20000"
OLD_LAYOUT = "session_2026-11-15_20-30-00_000000_20500"
VANISHED = "session_2026-11-15_21-00-00_000000_21000"
WORKER_LOG = "worker-8726a3b93832c9a8db736d7b413e1af6a504cd6641947e9a7f66a25c-01000000-16221.out"


def extract(name: str, directory: Path) -> Path:
    """Extract the archive `name` (store or spool) below the directory, with the recorded modification times."""
    with tarfile.open(FIXTURE / f"{name}.tar.gz") as archive:
        archive.extractall(directory, filter="data")
    return directory / name


def recorded_responses() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress((FIXTURE / "responses.json.gz").read_bytes()))
    return found


def posted_events(session: str) -> list[dict[str, Any]]:
    """Return the events that were posted in a session, in order; Ray posted some of them twice."""
    text = (DATA / "ray-2.60" / "events.jsonl").read_text().replace(ENDED, session)
    return [json.loads(line) for line in text.splitlines()]
