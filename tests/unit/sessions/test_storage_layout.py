"""The collector writes layouts that the servers of KubeRay v1.6 and v1.7, and ours, can read."""

import gzip
import json
import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rayhistory.server.app import create_app
from rayhistory.settings import resolve
from support.collector_process import NODE, SESSION, FakeRay, running_collector
from support.folding import RECORDED

V1_6_EVENT_FILE = re.compile(r"-\d{4}-\d{2}-\d{2}-\d{2}$")
"""The names of event objects that v1.6 reads."""
V1_7_EVENT_FILE = re.compile(r"-\d{4}-\d{2}-\d{2}-\d{2}(-\d+)?(\.jsonl)?(\.gz)?$")


@pytest.fixture
def store(home: Path, ray: FakeRay, request: pytest.FixtureRequest) -> Path:
    """The store of a session, as a real collector wrote it."""
    with running_collector(home, "--role=Head", f"--storage-layout={getattr(request, 'param', 'v1.6')}") as collector:
        logs = ray.start() / "logs"
        (logs / "events").mkdir()
        (logs / "events/event_JOBS.log").write_text("{}\n")
        for start in range(0, len(RECORDED), 50):
            batch = [event | {"sessionName": SESSION} for event in RECORDED[start : start + 50]]
            assert collector.post(batch).status_code == 200
        ray.stop()
        assert collector.terminate() == 0
        return collector.store


def test_v1_6_layout_is_readable_by_kuberay_v1_6(store: Path) -> None:
    """Names, depth and contents; our own tree is where that server does not list."""
    keys = sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())
    kuberay_keys = [key for key in keys if not key.startswith("ray-history/")]
    assert f"metadir/test_default/{SESSION}" in kuberay_keys
    assert (store / f"metadir/test_default/{SESSION}").read_bytes() == b""
    base = f"test_default/{SESSION}"
    assert all(key.startswith((f"{base}/", "metadir/")) for key in kuberay_keys)
    assert f"{base}/logs/{NODE}/raylet.out" in kuberay_keys
    assert f"{base}/logs/{NODE}/events/event_JOBS.log" in kuberay_keys
    files = [key.removeprefix(f"{base}/") for key in kuberay_keys if "_events/" in key]
    events = []
    for name in files:
        parts = name.split("/")
        assert (parts[0], len(parts)) in {("node_events", 2), ("job_events", 3)}
        assert V1_6_EVENT_FILE.search(name)
        assert parts[-1].startswith(NODE)
        content = json.loads((store / base / name).read_text())
        assert isinstance(content, list)
        events += content
    assert {event["eventId"] for event in events} == {event["eventId"] for event in RECORDED}
    assert "AQAAAA==" in {name.split("/")[1] for name in files if name.startswith("job_events/")}


@pytest.mark.slow
def test_v1_6_layout_is_readable_by_our_server(store: Path, tmp_path: Path) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize("store", ["v1.7"], indirect=True)
def test_v1_7_layout_is_readable_by_kuberay_v1_7(store: Path) -> None:
    """Its reader skips other names and depths, and fails on `.gz` objects that are not compressed."""
    keys = sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())
    kuberay_keys = [key for key in keys if not key.startswith("ray-history/")]
    markers = [key for key in kuberay_keys if key.startswith("cluster-metadata/")]
    assert markers == [f"cluster-metadata/raycluster/default_test/{SESSION}"]
    assert (store / markers[0]).read_bytes() == b""
    base = f"cluster-history/raycluster/default/test/{SESSION}/"
    names = [key.removeprefix(base) for key in kuberay_keys if key not in markers]
    assert all(key.startswith(base) for key in kuberay_keys if key not in markers)
    assert {name.split("/")[0] for name in names} <= {NODE, "fetched_endpoints"}
    assert {name.split("/")[1] for name in names if name.startswith(NODE)} == {"node_events", "job_events", "logs"}
    assert all(name.count("/") == 1 for name in names if name.startswith("fetched_endpoints/restful__"))
    events = []
    for name in [name for name in names if "_events/" in name and "/logs/" not in name]:
        parts = name.split("/")
        assert (parts[1], len(parts)) in {("node_events", 3), ("job_events", 4)}
        assert V1_7_EVENT_FILE.search(name)
        content = (store / base / name).read_bytes()
        assert content.startswith(b"\x1f\x8b") == name.endswith(".gz")
        lines = gzip.decompress(content) if name.endswith(".gz") else content
        events += [json.loads(line) for line in lines.splitlines()]
    assert sorted(event["eventId"] for event in events) == sorted(event["eventId"] for event in RECORDED)
