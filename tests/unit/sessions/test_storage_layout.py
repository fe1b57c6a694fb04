"""KubeRay's servers of v1.6 and of v1.7 find everything where they look, and so does ours."""

import gzip
import json
import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from test_collector_process import NODE, SESSION, FakeRay, home, ray, running  # noqa: F401 - the first two are fixtures

from folding import RECORDED
from rayhistory.server.app import create_app
from rayhistory.settings import resolve

OLD_EVENT_FILE = re.compile(r"-\d{4}-\d{2}-\d{2}-\d{2}$")
"""What v1.6 takes for a file with events."""
NEW_EVENT_FILE = re.compile(r"-\d{4}-\d{2}-\d{2}-\d{2}(-\d+)?(\.jsonl)?(\.gz)?$")


@pytest.fixture
def store(home: Path, ray: FakeRay, request: pytest.FixtureRequest) -> Path:  # noqa: F811
    """What the real collector brought to the store of a session, in two hours' worth of batches."""
    with running(home, "--role=Head", f"--storage-layout={getattr(request, 'param', 'v1.6')}") as collector:
        logs = ray.begin() / "logs"
        (logs / "events").mkdir()
        (logs / "events/event_JOBS.log").write_text("{}\n")
        for start in range(0, len(RECORDED), 50):
            batch = [event | {"sessionName": SESSION} for event in RECORDED[start : start + 50]]
            assert collector.post(batch).status_code == 200
        ray.end()
        assert collector.end() == 0
        return collector.store


def test_what_the_collector_writes_is_what_v1_6_reads(store: Path) -> None:
    """Names, depth and content; and what is ours is where that server does not look."""
    keys = sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())
    theirs = [key for key in keys if not key.startswith("ray-history/")]
    assert f"metadir/test_default/{SESSION}" in theirs
    assert (store / f"metadir/test_default/{SESSION}").read_bytes() == b""
    base = f"test_default/{SESSION}"
    assert all(key.startswith((f"{base}/", "metadir/")) for key in theirs)
    assert f"{base}/logs/{NODE}/raylet.out" in theirs
    assert f"{base}/logs/{NODE}/events/event_JOBS.log" in theirs
    files = [key.removeprefix(f"{base}/") for key in theirs if "_events/" in key]
    events = []
    for name in files:
        parts = name.split("/")
        assert (parts[0], len(parts)) in {("node_events", 2), ("job_events", 3)}
        assert OLD_EVENT_FILE.search(name)
        assert parts[-1].startswith(NODE)
        content = json.loads((store / base / name).read_text())
        assert isinstance(content, list)
        events += content
    assert {event["eventId"] for event in events} == {event["eventId"] for event in RECORDED}
    assert "AQAAAA==" in {name.split("/")[1] for name in files if name.startswith("job_events/")}


def test_our_server_opens_it(store: Path, tmp_path: Path) -> None:
    flags = {
        "setting_local_storage_dir": str(store),
        "setting_cache_dir": str(tmp_path),
        "setting_index_ahead": "false",
    }
    with TestClient(create_app(resolve("historyserver", flags, {})[0])) as client:
        (listed,) = client.get("/clusters").json()
        assert (listed["namespace"], listed["name"], listed["sessionName"]) == ("default", "test", SESSION)
        base = f"/s/default/test/{SESSION}"
        tasks = client.get(f"{base}/api/v0/tasks?limit=1000").json()["data"]["result"]
        assert tasks["num_filtered"] == 23
        log = client.get(f"{base}/api/v0/logs/file?node_id={NODE}&filename=raylet.out")
        assert log.text == "hello from the raylet\n"


@pytest.mark.parametrize("store", ["v1.7"], indirect=True)
def test_what_the_collector_writes_is_what_v1_7_reads(store: Path) -> None:
    """Its reader skips, or fails on, what has another name, another depth, or `.gz` without being compressed."""
    keys = sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())
    theirs = [key for key in keys if not key.startswith("ray-history/")]
    marks = [key for key in theirs if key.startswith("cluster-metadata/")]
    assert marks == [f"cluster-metadata/raycluster/default_test/{SESSION}"]
    assert (store / marks[0]).read_bytes() == b""
    base = f"cluster-history/raycluster/default/test/{SESSION}/"
    names = [key.removeprefix(base) for key in theirs if key not in marks]
    assert all(key.startswith(base) for key in theirs if key not in marks)
    assert {name.split("/")[0] for name in names} <= {NODE, "fetched_endpoints"}
    assert {name.split("/")[1] for name in names if name.startswith(NODE)} == {"node_events", "job_events", "logs"}
    assert all(name.count("/") == 1 for name in names if name.startswith("fetched_endpoints/restful__"))
    events = []
    for name in [name for name in names if "_events/" in name and "/logs/" not in name]:
        parts = name.split("/")
        assert (parts[1], len(parts)) in {("node_events", 3), ("job_events", 4)}
        assert NEW_EVENT_FILE.search(name)
        content = (store / base / name).read_bytes()
        assert content.startswith(b"\x1f\x8b") == name.endswith(".gz")
        lines = gzip.decompress(content) if name.endswith(".gz") else content
        events += [json.loads(line) for line in lines.splitlines()]
    assert sorted(event["eventId"] for event in events) == sorted(event["eventId"] for event in RECORDED)
