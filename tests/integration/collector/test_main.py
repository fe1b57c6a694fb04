"""The collector as a process: start, shutdown, and recovery after it is killed."""

import asyncio
import gzip
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import httpx
import pytest

from rayhistory.sessions import Layout
from rayhistory.sessions.catalog import SessionCatalog
from rayhistory.storage.local import LocalStore
from support.collector_process import NODE, SESSION, CollectorProcess, FakeRay, event, eventually, running_collector

NEXT_SESSION = "session_2026-11-15_20-00-00_000000_20000"
KUBERAY_EVENT_FILE = re.compile(r"-\d{4}-\d{2}-\d{2}-\d{2}(-\d+)?(\.jsonl)?(\.gz)?$")


def test_acknowledged_batch_is_in_the_spool_when_the_response_arrives(home: Path) -> None:
    with running_collector(home) as collector:
        for number in range(20):
            assert collector.post([event(number)]).status_code == 200
            assert f'"eventId": "{number}"'.encode() in collector.spooled()


def test_collector_started_before_ray_waits_for_it(home: Path, ray: FakeRay) -> None:
    """The session is in the store seconds after Ray has started."""
    with running_collector(home, "--role=Head") as collector:
        assert httpx.get(f"{collector.url}/readyz", trust_env=False).status_code == 200
        time.sleep(1.5)
        assert collector.stored_keys() == []
        ray.start()
        keys = eventually(lambda: [key for key in collector.stored_keys() if key.endswith("/alive")])
        assert keys == [f"ray-history/sessions/default/test/{SESSION}/alive"]
        eventually(lambda: f"cluster-metadata/raycluster/default_test/{SESSION}" in collector.stored_keys())
        eventually(lambda: any(f"/{NODE}/" in key and key.endswith(".pack") for key in collector.stored_keys()))
        ray.stop()
        assert collector.terminate() == 0


def test_ended_session_is_not_collected_again(home: Path, ray: FakeRay) -> None:
    """session_latest may still point to yesterday's session while Ray is about to start."""
    ray.start()
    ray.stop()
    with running_collector(home, "--role=Head") as collector:
        time.sleep(2.5)
        assert collector.stored_keys() == []
        ray.start(NEXT_SESSION)
        eventually(lambda: any(NEXT_SESSION in key for key in collector.stored_keys()))
        assert not any(SESSION in key for key in collector.stored_keys())


def test_clean_shutdown_uploads_everything(home: Path, ray: FakeRay) -> None:
    """After SIGTERM, events, the last logs, the seal and end.json are stored under KubeRay's names."""
    directory = ray.start()
    with running_collector(home, "--role=Head") as collector:
        lifecycle = {"eventType": "ACTOR_LIFECYCLE_EVENT", "sessionName": SESSION, "actorLifecycleEvent": {}}
        assert collector.post([event(1), lifecycle]).status_code == 200
        eventually(lambda: any(key.endswith("/start.json") for key in collector.stored_keys()))
        (directory / "logs" / "last.log").write_text("the last line\n")
        ray.stop()
        assert collector.terminate() == 0
    history = f"cluster-history/raycluster/default/test/{SESSION}/{NODE}"
    keys = collector.stored_keys()
    events = [key for key in keys if "_events/" in key]
    assert {str(Path(key).parent) for key in events} == {f"{history}/node_events", f"{history}/job_events/01000000"}
    assert all(KUBERAY_EVENT_FILE.search(key) and Path(key).name.startswith(f"{NODE}-") for key in events)
    assert (collector.store / history / "logs" / "last.log").read_text() == "the last line\n"
    record = collector.store / f"ray-history/sessions/default/test/{SESSION}"
    assert json.loads((record / "end.json").read_text())["ended_ms"] > 0
    seal = json.loads((collector.store / f"ray-history/seals/default/test/{SESSION}/{NODE}.json").read_text())
    assert (seal["received"], seal["stored"], seal.get("left_behind", [])) == (2, 2, [])
    assert not list(collector.spool.rglob("*.wal"))


def test_events_are_accepted_until_the_raylet_exits(home: Path, ray: FakeRay) -> None:
    """SIGTERM reaches Ray and the collector together, and Ray sends its last events while it exits."""
    ray.start()
    with running_collector(home, "--role=Head") as collector:
        eventually(lambda: any(key.endswith("/start.json") for key in collector.stored_keys()))
        assert collector.process
        collector.process.send_signal(signal.SIGTERM)
        time.sleep(1.5)
        assert collector.post([event(7)]).status_code == 200
        ray.stop()
        assert collector.process.wait(20) == 0
    assert [each["eventId"] for each in collector.stored_events()] == ["7"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_log_and_end_of_the_session_name_the_signal(home: Path, ray: FakeRay, number: signal.Signals) -> None:
    ray.start()
    with running_collector(home, "--role=Head") as collector:
        eventually(lambda: any(key.endswith("/start.json") for key in collector.stored_keys()))
        assert collector.process
        collector.process.send_signal(number)
        eventually(lambda: any(" received, " in line["event"] for line in collector.log()))
        ray.stop()
        assert collector.process.wait(20) == 0
    events = {line["event"]: line for line in collector.log()}
    assert f"{number.name} received, accepting events until Ray exits" in events
    assert events["collector finished recording the session"]["reason"] == f"collector received {number.name}"


def test_second_signal_shuts_down_fast(home: Path, ray: FakeRay) -> None:
    """Pressing Ctrl-C twice does not wait for the raylet."""
    ray.start()
    with running_collector(home, "--role=Head") as collector:
        eventually(lambda: any(key.endswith("/start.json") for key in collector.stored_keys()))
        assert collector.process
        for _ in range(2):
            collector.process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        assert collector.process.wait(8) == 0
    assert any(key.endswith("/end.json") for key in collector.stored_keys())


def test_new_session_closes_the_old_one(home: Path, ray: FakeRay) -> None:
    """When Ray restarts in the same pod, the old session is sealed with its own node id."""
    ray.start()
    with running_collector(home, "--role=Head") as collector:
        collector.post([event(1)])
        eventually(lambda: any(key.endswith("/start.json") for key in collector.stored_keys()))
        ray.stop()
        new_node = "ab" * 28
        ray.start(NEXT_SESSION, new_node)
        collector.post([event(2, NEXT_SESSION)])
        ended = f"ray-history/sessions/default/test/{SESSION}/end.json"
        eventually(lambda: ended in collector.stored_keys())
        ray.stop()
        assert collector.terminate() == 0
    nodes = {(Path(key).parts[4], Path(key).parts[5]) for key in collector.stored_keys() if "job_events" in key}
    assert nodes == {(SESSION, NODE), (NEXT_SESSION, new_node)}


def test_session_ends_with_ray_and_comes_back_if_ray_resumes_it(home: Path, ray: FakeRay) -> None:
    """A dead cluster stayed running as long as its collector lived."""
    ray.start()
    with running_collector(home, "--role=Head") as collector:
        records = collector.store / f"ray-history/sessions/default/test/{SESSION}"
        eventually((records / "alive").exists)
        ray.stop()
        stopped_ms = time.time() * 1000
        eventually((records / "end.json").exists, 30)
        eventually(lambda: not (records / "alive").exists())
        end = json.loads((records / "end.json").read_text())
        assert end["reason"] == "Ray has exited"
        assert stopped_ms - 5000 < end["ended_ms"] <= stopped_ms
        collector.post([event(1)])  # too late, and no reason to reopen the session
        time.sleep(2)
        assert json.loads((records / "end.json").read_text()) == end
        ray.start()
        eventually((records / "alive").exists)
        eventually(lambda: not (records / "end.json").exists())
        collector.post([event(2)])
        ray.stop()
        assert collector.terminate() == 0
        assert json.loads((records / "end.json").read_text())["ended_ms"] > end["ended_ms"]
    assert {each["eventId"] for each in collector.stored_events()} == {"1", "2"}


def test_head_resumes_its_session_in_a_new_pod(home: Path, ray: FakeRay) -> None:
    """With GCS fault tolerance, a new pod has the session of the one before, and an empty spool."""
    ray.start()
    with running_collector(home, "--role=Head") as collector:
        records = collector.store / f"ray-history/sessions/default/test/{SESSION}"
        eventually((records / "alive").exists)
        ray.stop()
        assert collector.terminate() == 0
        end = (records / "end.json").read_bytes()
        os.utime(records / "end.json", (time.time() - 60, time.time() - 60))
        shutil.rmtree(home / "spool")
        ray.start()
        collector.start()
        eventually((records / "alive").exists)
        assert (records / "end.json").read_bytes() == end
        assert session_states(collector.store) == {SESSION: "running"}
        ray.stop()
        assert collector.terminate() == 0
    assert session_states(collector.store) == {SESSION: "ended"}
    assert json.loads((records / "end.json").read_text())["ended_ms"] > json.loads(end)["ended_ms"]


def session_states(store: Path) -> dict[str, str]:
    catalog = SessionCatalog(LocalStore(store), Layout(), vanished_after=120)
    return {entry.ref.session: catalog.state(entry) for entry in asyncio.run(catalog.entries())}


def test_changed_node_id_starts_new_objects(home: Path, ray: FakeRay) -> None:
    """A raylet that restarts in the same session has a new node id."""
    directory = ray.start()
    with running_collector(home) as collector:
        collector.post([event(1)])
        eventually(lambda: [path for path in collector.spool.rglob("*.wal") if NODE in path.name])
        new_node = "cd" * 28
        (directory / f"metrics_export_port_{new_node}").write_text("1")
        eventually(lambda: [line for line in collector.log() if line.get("node") == new_node])
        collector.post([event(2)])
        ray.stop()
        assert collector.terminate() == 0
    found = {Path(key).parts[5]: key for key in collector.stored_keys() if "job_events" in key}
    assert set(found) == {NODE, new_node}


def test_kill_9_loses_nothing_that_was_acknowledged(home: Path, ray: FakeRay) -> None:
    """Killed several times under load: each acknowledged event is stored exactly once."""
    ray.start()
    acked: list[str] = []
    collector = CollectorProcess(home, "--role=Head", "--event-rotation-interval=1s").start()
    try:
        for round_ in range(4):
            with httpx.Client(trust_env=False) as client:
                deadline = time.monotonic() + 1.5
                while time.monotonic() < deadline:
                    batch = [event(len(acked) + n) for n in range(5)]
                    body = json.dumps(batch).encode()
                    assert client.post(f"{collector.url}/v1/events", content=body).status_code == 200
                    acked += [each["eventId"] for each in batch]
            collector.kill()
            if round_ == 1:  # a power failure in the middle of a write
                for path in collector.spool.rglob("*.wal"):
                    with path.open("ab") as file:
                        file.write(b"\x1f\x8b\x08\x04\0\0\0\0\0\xff torn")
            collector.start()
        ray.stop()
        assert collector.terminate() == 0
    finally:
        collector.kill()
    counts = Counter(each["eventId"] for each in collector.stored_events())
    assert set(counts) == set(acked)
    assert set(counts.values()) == {1}


def test_restarted_collector_reopens_the_session(home: Path, ray: FakeRay) -> None:
    """A running session must not look ended because its collector was restarted."""
    ray.start()
    with running_collector(home, "--role=Head", "--grace-period=5s") as collector:
        eventually(lambda: any(key.endswith("/start.json") for key in collector.stored_keys()))
        start = json.loads(next(collector.store.rglob("start.json")).read_text())
        assert collector.terminate() == 0
        assert list(collector.store.rglob("end.json"))
        collector.start()
        eventually(lambda: not list(collector.store.rglob("end.json")))
        assert json.loads(next(collector.store.rglob("start.json")).read_text())["started_ms"] == start["started_ms"]


def test_spool_of_a_killed_collector_is_uploaded_and_sealed_by_the_next(home: Path, ray: FakeRay) -> None:
    """Ray has exited before the collector restarts, and the seal still has the right counts."""
    ray.start()
    with running_collector(home) as collector:
        assert collector.post([event(1), event(2)]).status_code == 200
        eventually(lambda: [path for path in collector.spool.rglob("*.wal") if NODE in path.name])
        collector.kill()
        ray.stop()
        collector.start()
        seal = eventually(lambda: list(collector.store.rglob(f"seals/**/{NODE}.json")))[0]
        counts = json.loads(seal.read_text())
        assert (counts["received"], counts["stored"], counts.get("left_behind", [])) == (2, 2, [])
        assert len(collector.stored_events()) == 2


def test_new_session_is_collected_while_an_old_seal_waits_for_the_store(home: Path, ray: FakeRay) -> None:
    """The store may reject seals for hours: collection continues, and the seals are written later."""
    ray.start()
    with running_collector(home, "--role=Head") as collector:
        assert collector.post([event(1)]).status_code == 200
        eventually(lambda: [path for path in collector.spool.rglob("*.wal") if NODE in path.name])
        collector.kill()
        ray.stop()
        seals = collector.store / "ray-history" / "seals"
        seals.parent.mkdir(parents=True, exist_ok=True)
        seals.write_text("a file, not a directory")
        collector.start()
        eventually(
            lambda: [line for line in collector.log() if line["event"] == "session record upload failed, retrying"]
        )
        ray.start(NEXT_SESSION)
        eventually(lambda: any(f"{NEXT_SESSION}/start.json" in key for key in collector.stored_keys()))
        assert collector.process
        collector.process.send_signal(signal.SIGTERM)
        ray.stop()
        seals.unlink()
        assert collector.process.wait(20) == 0
        sealed = {Path(key).parts[4] for key in collector.stored_keys() if "/seals/" in key}
        assert sealed == {SESSION, NEXT_SESSION}


def test_seal_counts_events_of_all_collector_processes(home: Path, ray: FakeRay) -> None:
    """A restarted collector continues the counts of the one that was killed."""
    ray.start()
    with running_collector(home, "--event-rotation-interval=500ms") as collector:
        for number in range(3):
            assert collector.post([event(number)]).status_code == 200
            eventually(lambda: not collector.spooled())
            collector.kill()
            collector.start()
        ray.stop()
        assert collector.post([event(9), "bad"]).status_code == 200
        assert collector.terminate() == 0
    seal = json.loads(next(collector.store.rglob(f"seals/**/{NODE}.json")).read_text())
    assert (seal["received"], seal["stored"], seal["set_aside"]) == (4, 4, 1)


def test_events_wait_in_the_spool_while_the_store_fails(home: Path, ray: FakeRay) -> None:
    ray.start()
    (home / "store").mkdir()
    (home / "store" / "cluster-history").write_text("a file, not a directory")
    with running_collector(home, "--event-rotation-interval=1s") as collector:
        collector.post([event(1)])
        eventually(lambda: [line for line in collector.log() if line["event"] == "event upload failed, retrying"])
        assert collector.spooled()
        (collector.store / "cluster-history").unlink()
        eventually(collector.stored_events)
        eventually(lambda: not collector.spooled())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--unknown"], "unknown flag"),
        (["--role=Boss"], "Head or Worker"),
        (["--storage-backend=tape"], "unknown storage backend"),
        (["--events-host=127.0.0.1", "--events-port={taken}"], "--events-port"),
    ],
)
def test_usage_error_is_one_line_and_exit_code_2(home: Path, flags: list[str], message: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in {"STORAGE_BACKEND", "RAY_ROLE"}}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flags = [flag.format(taken=taken.getsockname()[1]) for flag in flags]
        result = subprocess.run(
            [sys.executable, "-m", "rayhistory.collector.main", *flags],
            env={**environment, "LOCAL_STORAGE_DIR": str(home / "store"), "RAY_TMP_ROOT": str(home)},
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_second_collector_in_the_same_spool_exits(home: Path) -> None:
    """It must not upload and delete the open segments of the first one."""
    with running_collector(home) as first:
        second = CollectorProcess(home)
        with pytest.raises(AssertionError):
            second.start()
        assert second.process
        assert second.process.wait(5) == 2
        assert first.post([event(1)]).status_code == 200


def has_found_its_session(collector: CollectorProcess) -> bool:
    return "found a session, collecting its data" in str(collector.log())


def test_two_collectors_on_one_host_store_two_nodes(home: Path) -> None:
    """Each has its own spool and Ray directory; both nodes belong to one session."""
    rays = [FakeRay(home / name) for name in ("a", "b")]
    nodes = ["ab" * 28, "cd" * 28]
    for ray, node in zip(rays, nodes, strict=True):
        (ray.start(node=node) / "logs" / "worker.out").write_text(f"of {node}\n")
    store = {"LOCAL_STORAGE_DIR": str(home / "store")}
    with (
        running_collector(home / "a", "--role=Head", **store) as first,
        running_collector(home / "b", **store) as second,
    ):
        for collector, number in ((first, 1), (second, 2)):
            assert collector.post([event(number)]).status_code == 200
        for collector, ray in ((second, rays[1]), (first, rays[0])):
            eventually(partial(has_found_its_session, collector))
            ray.stop()
            assert collector.terminate() == 0
    history = home / f"store/cluster-history/raycluster/default/test/{SESSION}"
    for node, name in zip(nodes, ("1", "2"), strict=True):
        assert (history / node / "logs/worker.out").read_text() == f"of {node}\n"
        (events,) = (history / node / "job_events").rglob("*.gz")
        assert [json.loads(line)["eventId"] for line in gzip.decompress(events.read_bytes()).splitlines()] == [name]
    assert {path.name for path in history.iterdir()} == set(nodes)


def test_metrics_count_received_and_spooled_events(home: Path) -> None:
    with running_collector(home) as collector:
        collector.post([event(1), event(2), 3])
        text = httpx.get(f"{collector.url}/metrics", trust_env=False).text
    assert "rayhistory_collector_events_received_total 3.0" in text
    assert "rayhistory_collector_events_acked_total 2.0" in text
    assert 'rayhistory_collector_quarantined_total{reason="not_an_object"} 1.0' in text
    assert "rayhistory_collector_spool_bytes 0.0" not in text


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_collector_on_ipv6_also_accepts_events_on_ipv4_loopback(home: Path) -> None:
    """Pods of an IPv6 cluster are scraped by IPv6, and their Ray exports to 127.0.0.1."""
    with running_collector(home, "--events-host=::") as collector:
        assert collector.post([event(1)]).status_code == 200
        metrics = httpx.get(f"http://[::1]:{collector.port}/metrics", trust_env=False).text
        assert "rayhistory_collector_events_received_total 1" in metrics
