"""A session has one end: in the list, on the slider, in the diagnosis, and for what was open at the end."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.server.app import create_app
from rayhistory.sessions import Layout
from support.recorded_sample import REF, settings_for, store_sample

LAYOUT = Layout()
LAST_EVENT_MS, HOUR_MS = 1_794_770_513_632, 3_600_000
START = {"namespace": REF.namespace, "cluster": REF.cluster, "session": REF.session, "started_ms": 1}


def put(directory: Path, key: str, content: Any = "", modified_ms: int = 0) -> None:
    path = directory / "store" / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content) if content else "")
    if modified_ms:
        os.utime(path, (modified_ms / 1000, modified_ms / 1000))


@pytest.mark.parametrize("record", ["end before the last event", "end after it", "heartbeat", "none"])
def test_session_has_one_end_everywhere(tmp_path: Path, record: str) -> None:
    settings = settings_for(tmp_path)
    store_sample(settings)
    if record.startswith("end"):
        put(tmp_path, LAYOUT.start_key(REF), START)
        put(tmp_path, LAYOUT.end_key(REF), {"ended_ms": LAST_EVENT_MS + HOUR_MS * (1 if "after" in record else -24)})
    elif record == "heartbeat":
        put(tmp_path, LAYOUT.start_key(REF), START, LAST_EVENT_MS)
        put(tmp_path, LAYOUT.alive_key(REF), modified_ms=LAST_EVENT_MS + HOUR_MS)
    with TestClient(create_app(settings)) as client:
        overview = client.get(f"{REF.url}api/history/overview").json()
        diagnosis = client.get(f"{REF.url}api/history/diagnosis").json()
        (row,) = client.get("/api/history/sessions").json()["sessions"]
        tasks = client.get(f"{REF.url}api/v0/tasks?detail=1&limit=1000").json()["data"]["result"]["result"]
    assert row["ended_ms"] == overview["last_ms"] == diagnosis["ended_ms"]
    assert max(task["end_time_ms"] or 0 for task in tasks) <= row["ended_ms"]
