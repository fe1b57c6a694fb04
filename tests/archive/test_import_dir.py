"""`rayhistory import-dir`: an imported session directory shows what Ray's files contain."""

import gzip
import json
import os
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

from rayhistory.sessions import SessionRef
from support import archived_sessions
from support.archived_sessions import StoreLocation, rayhistory, session_objects
from support.reported_tasks import lacks_last_report
from support.session_without_collector import (
    LISTS,
    LOG,
    UncollectedSession,
    differences,
    list_rows,
    serve_store,
    session_path,
)

TASKS, ACTORS, NODES, WORKERS = (f"/api/v0/{name}?{LISTS}" for name in ("tasks", "actors", "nodes", "workers"))


@pytest.fixture
def imported(uncollected: UncollectedSession, tmp_path: Path) -> StoreLocation:
    location = archived_sessions.directory(tmp_path / "store")
    done = rayhistory(location, "import-dir", str(uncollected.on_disk), "--name", "disk")
    assert done.returncode == 0, done.stderr
    assert f"default/disk/{uncollected.on_disk.name}  imported, node" in done.stdout
    return location


def test_tasks_actors_jobs_and_nodes_match_the_dashboard(
    uncollected: UncollectedSession, imported: StoreLocation, tmp_path: Path
) -> None:
    """Export files lack custom task names, and the log positions of some tasks."""
    with serve_store(tmp_path / "store", tmp_path / "cache") as client:
        tasks = list_rows(client, TASKS, "task_id", "attempt_number")
        live = uncollected.rows(TASKS, "task_id", "attempt_number")
        assert len(tasks) > 50
        assert not differences(tasks, live, {"name", "task_log_info", "events"})
        for key, task in tasks.items():  # times differ for a state that was reached twice
            assert [each["state"] for each in task["events"]] == [each["state"] for each in live[key]["events"]]
        with_logs = [task for key, task in tasks.items() if task["task_log_info"]]
        assert with_logs
        workers = {worker["worker_id"]: worker for worker in uncollected.rows(WORKERS, "worker_id").values()}
        for task in with_logs:
            info, reported = task["task_log_info"], live[task["task_id"], task["attempt_number"]]["task_log_info"]
            if lacks_last_report(task, workers):
                assert (reported or {}).items() <= info.items()
            else:
                assert info == reported
        changed_at_end = {
            "state",
            "death_cause",
            "end_time_ms",
            "state_message",
        }  # the dashboard was read before the end
        assert not differences(
            list_rows(client, ACTORS, "actor_id"), uncollected.rows(ACTORS, "actor_id"), changed_at_end
        )
        assert not differences(list_rows(client, NODES, "node_id"), uncollected.rows(NODES, "node_id"), changed_at_end)
        assert {actor["state"] for actor in list_rows(client, ACTORS, "actor_id").values()} == {"DEAD"}
        assert client.get(session_path(client) + "/api/jobs/").json() == uncollected.live["/api/jobs/"]


def test_logs_and_cluster_events_are_imported(
    uncollected: UncollectedSession, imported: StoreLocation, tmp_path: Path
) -> None:
    with serve_store(tmp_path / "store", tmp_path / "cache") as client:
        base = session_path(client)
        (node,) = list_rows(client, NODES, "node_id")
        file = client.get(f"{base}/api/v0/logs/file?node_id={node[0]}&filename={LOG}&lines=-1")
        assert file.text == uncollected.log
        events = client.get(f"{base}/events").json()["data"]["events"]["global"]
        assert "Started a ray job sample-job." in {event["message"] for event in events}
        assert not [gap for gap in client.get(f"{base}/api/history/gaps").json()["gaps"] if gap["place"]]


def test_import_is_idempotent_and_adds_a_second_node(
    uncollected: UncollectedSession, imported: StoreLocation, tmp_path: Path
) -> None:
    before = imported.objects()
    assert rayhistory(imported, "import-dir", str(uncollected.on_disk), "--name", "disk").returncode == 0
    assert imported.objects() == before
    other = tmp_path / "other" / uncollected.on_disk.name
    (other / "logs").mkdir(parents=True)
    (other / "logs" / "raylet.out").write_text(f"Raylet of id, {'ab' * 28} started\n")
    assert rayhistory(imported, "import-dir", str(other), "--name", "disk").returncode == 0
    after = imported.objects()
    assert {key: after[key] for key in before if not key.endswith("/end.json")} == {
        key: data for key, data in before.items() if not key.endswith("/end.json")
    }
    assert any("ab" * 28 in key and key.endswith("/raylet.out") for key in after)


def test_unreadable_lines_are_counted_as_gaps(uncollected: UncollectedSession, tmp_path: Path) -> None:
    directory = tmp_path / uncollected.on_disk.name
    shutil.copytree(uncollected.on_disk, directory, symlinks=True)
    with (directory / "logs/export_events/event_EXPORT_ACTOR.log").open("ab") as file:
        file.write(
            b'no json\n[1]\n{"timestamp": 1}\n{"timestamp": 1, "source_type": "EXPORT_TASK", "event_data": {}}\n'
        )
    (directory / "logs" / "a\nb.log").write_text("x")
    (directory / "logs" / "secret").symlink_to("/etc/passwd")
    location = archived_sessions.directory(tmp_path / "store")
    done = rayhistory(location, "import-dir", str(directory), "--name", "disk")
    assert done.returncode == 0, done.stderr
    assert "2 lines of export files are unreadable" in done.stdout
    assert "skipped, the name is not a valid key: 'a\\nb.log'" in done.stdout
    assert not [key for key in location.objects() if "secret" in key]
    with serve_store(tmp_path / "store", tmp_path / "cache") as client:
        gaps = client.get(session_path(client) + "/api/history/gaps").json()["gaps"]
        counts = Counter({(gap["code"], gap["detail"]): gap["count"] for gap in gaps if gap["place"]})
        unexpected = "export_record_unexpected"
        assert counts == {
            ("events_quarantined", ""): 2,
            (unexpected, "KeyError('task_id')"): 1,
            (unexpected, "KeyError('source_type')"): 1,
        }
        assert len(list_rows(client, TASKS, "task_id", "attempt_number")) > 50


def test_directory_without_export_files_has_logs(tmp_path: Path) -> None:
    directory = tmp_path / "session_2026-11-15_19-18-08_055078_15551"
    (directory / "logs").mkdir(parents=True)
    (directory / "logs" / "raylet.out").write_text("hello\n")
    location = archived_sessions.directory(tmp_path / "store")
    done = rayhistory(location, "import-dir", str(directory), "--name", "disk")
    assert done.returncode == 0, done.stderr
    assert "No export files found" in done.stdout
    with serve_store(tmp_path / "store", tmp_path / "cache") as client:
        file = client.get(f"{session_path(client)}/api/v0/logs/file?node_id=unknown&filename=raylet.out")
        assert file.text == "hello\n"


def test_import_of_an_earlier_session_is_not_the_newest(tmp_path: Path) -> None:
    location, now = archived_sessions.directory(tmp_path / "store"), time.time()
    recorded = SessionRef("default", "recorded", time.strftime("session_%Y-%m-%d_%H-%M-%S_000000_2", time.gmtime(now)))
    location.put(session_objects(location.layout, recorded))
    logs = tmp_path / time.strftime("session_%Y-%m-%d_%H-%M-%S_000000_1", time.gmtime(now - 7200)) / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("hello\n")
    for path in (logs / "raylet.out", logs):
        os.utime(path, (now - 7200, now - 7200))
    done = rayhistory(location, "import-dir", str(logs.parent), "--name", "disk")
    assert done.returncode == 0, done.stderr
    listed = json.loads(rayhistory(location, "sessions", "--json").stdout)
    assert [session["cluster"] for session in listed] == ["recorded", "disk"]
    assert recorded.path in rayhistory(location, "jobs").stderr


@pytest.mark.parametrize("number", ["1e18", "-1e18", "1e300", "NaN", "253402300800"])
def test_line_with_an_invalid_timestamp_is_skipped(tmp_path: Path, number: str) -> None:
    directory = tmp_path / "session_2026-11-15_19-18-08_055078_15551"
    (directory / "logs/export_events").mkdir(parents=True)
    (directory / "logs/export_events/event_EXPORT_TASK.log").write_text(
        f'{{"timestamp": 1794770300, "n": 1}}\n{{"timestamp": {number}}}\n{{"timestamp": 1794770300, "n": 2}}\n'
    )
    location = archived_sessions.directory(tmp_path / "store")
    done = rayhistory(location, "import-dir", str(directory), "--name", "disk")
    assert done.returncode == 0, done.stderr
    assert "1 lines of export files are unreadable" in done.stdout
    (records,) = [gzip.decompress(data) for key, data in location.objects().items() if key.endswith(".jsonl.gz")]
    assert [json.loads(line)["timestamp"][17:] for line in records.splitlines()] == ["20.000000Z", "20.000001Z"]


def test_running_ray_is_not_imported(uncollected: UncollectedSession) -> None:
    assert "Ray is still running" in uncollected.import_error
    assert len(uncollected.import_error.strip().splitlines()) == 1


def test_session_of_a_collector_keeps_its_records(uncollected: UncollectedSession, tmp_path: Path) -> None:
    location = archived_sessions.directory(tmp_path)
    ref = SessionRef("default", "disk", uncollected.on_disk.name)
    location.put(session_objects(location.layout, ref, ended_ms=None))
    before = location.objects()
    done = rayhistory(location, "import-dir", str(uncollected.on_disk), "--name", "disk")
    assert done.returncode == 2
    assert "is being recorded by a collector" in done.stderr
    assert location.objects() == before
    done = rayhistory(location, "import-dir", str(uncollected.on_disk), "--name", "disk", "--vanished-after", "1ms")
    assert done.returncode == 0, done.stderr
    after = location.objects()
    assert location.layout.end_key(ref) not in after  # only the collector writes its end
    assert after[location.layout.start_key(ref)] == before[location.layout.start_key(ref)]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("nowhere", "no such directory"),
        ("other", "not a session directory of Ray: its name must be like"),
        ("session_2026-11-15_19-18-08_055078_1", "it has no logs directory"),
    ],
)
def test_other_directories_are_rejected_in_one_line(tmp_path: Path, name: str, error: str) -> None:
    if name != "nowhere":
        (tmp_path / name).mkdir()
    location = archived_sessions.directory(tmp_path / "store")
    done = rayhistory(location, "import-dir", str(tmp_path / name))
    assert done.returncode == 2
    assert error in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert location.objects() == {}
