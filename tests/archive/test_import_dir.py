"""A session directory that was found on a disk opens as if a collector had been there, as far as Ray's files tell."""

import gzip
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

import kept
from kept import Place, rayhistory, session_objects
from plainsession import LISTS, LOG, PlainSession, base_of, differences, listed, opened
from rayhistory.layout import SessionRef

TASKS, ACTORS, NODES = (f"/api/v0/{name}?{LISTS}" for name in ("tasks", "actors", "nodes"))


@pytest.fixture
def imported(plain: PlainSession, tmp_path: Path) -> Place:
    place = kept.directory(tmp_path / "store")
    done = rayhistory(place, "import-dir", str(plain.on_disk), "--name", "disk")
    assert done.returncode == 0, done.stderr
    assert f"default/disk/{plain.on_disk.name}  brought in, node" in done.stdout
    return place


def test_tasks_actors_jobs_and_nodes_are_those_of_the_dashboard(
    plain: PlainSession, imported: Place, tmp_path: Path
) -> None:
    """Export files lack the names of tasks that have one of their own, and of some tasks where they logged."""
    with opened(tmp_path / "store", tmp_path / "cache") as client:
        tasks = listed(client, TASKS, "task_id", "attempt_number")
        live = plain.rows(TASKS, "task_id", "attempt_number")
        assert len(tasks) > 50
        assert not differences(tasks, live, {"name", "task_log_info", "events"})
        for key, task in tasks.items():  # a state that was reached twice has another time there
            assert [each["state"] for each in task["events"]] == [each["state"] for each in live[key]["events"]]
        logged = [task for key, task in tasks.items() if task["task_log_info"]]
        assert logged
        assert all(task["task_log_info"] == live[task["task_id"], task["attempt_number"]]["task_log_info"]
                   for task in logged)  # fmt: skip
        ended = {"state", "death_cause", "end_time_ms", "state_message"}  # the dashboard was asked before the end
        assert not differences(listed(client, ACTORS, "actor_id"), plain.rows(ACTORS, "actor_id"), ended)
        assert not differences(listed(client, NODES, "node_id"), plain.rows(NODES, "node_id"), ended)
        assert {actor["state"] for actor in listed(client, ACTORS, "actor_id").values()} == {"DEAD"}
        assert client.get(base_of(client) + "/api/jobs/").json() == plain.live["/api/jobs/"]


def test_logs_and_cluster_events_are_there(plain: PlainSession, imported: Place, tmp_path: Path) -> None:
    with opened(tmp_path / "store", tmp_path / "cache") as client:
        base = base_of(client)
        (node,) = listed(client, NODES, "node_id")
        file = client.get(f"{base}/api/v0/logs/file?node_id={node[0]}&filename={LOG}&lines=-1")
        assert file.text == plain.log
        events = client.get(f"{base}/events").json()["data"]["events"]["global"]
        assert "Started a ray job sample-job." in {event["message"] for event in events}
        assert not [gap for gap in client.get(f"{base}/api/history/gaps").json()["gaps"] if gap["source"]]


def test_what_is_there_already_is_not_sent_again_and_a_second_node_joins(
    plain: PlainSession, imported: Place, tmp_path: Path
) -> None:
    before = imported.objects()
    assert rayhistory(imported, "import-dir", str(plain.on_disk), "--name", "disk").returncode == 0
    assert imported.objects() == before
    other = tmp_path / "other" / plain.on_disk.name
    (other / "logs").mkdir(parents=True)
    (other / "logs" / "raylet.out").write_text(f"Raylet of id, {'ab' * 28} started\n")
    assert rayhistory(imported, "import-dir", str(other), "--name", "disk").returncode == 0
    after = imported.objects()
    assert {key: after[key] for key in before if not key.endswith("/end.json")} == {
        key: data for key, data in before.items() if not key.endswith("/end.json")
    }
    assert any("ab" * 28 in key and key.endswith("/raylet.out") for key in after)


def test_what_cannot_be_read_is_counted_and_the_rest_is_kept(plain: PlainSession, tmp_path: Path) -> None:
    directory = tmp_path / plain.on_disk.name
    shutil.copytree(plain.on_disk, directory, symlinks=True)
    with (directory / "logs/export_events/event_EXPORT_ACTOR.log").open("ab") as file:
        file.write(
            b'no json\n[1]\n{"timestamp": 1}\n{"timestamp": 1, "source_type": "EXPORT_TASK", "event_data": {}}\n'
        )
    (directory / "logs" / "a\nb.log").write_text("odd")
    (directory / "logs" / "secret").symlink_to("/etc/passwd")
    place = kept.directory(tmp_path / "store")
    done = rayhistory(place, "import-dir", str(directory), "--name", "disk")
    assert done.returncode == 0, done.stderr
    assert "2 lines of export files could not be read" in done.stdout
    assert "left behind, because a store cannot hold its name: 'a\\nb.log'" in done.stdout
    assert not [key for key in place.objects() if "secret" in key]
    with opened(tmp_path / "store", tmp_path / "cache") as client:
        gaps = client.get(base_of(client) + "/api/history/gaps").json()["gaps"]
        kinds = Counter({(gap["kind"], gap["detail"]): gap["count"] for gap in gaps if gap["source"]})
        odd = "unexpected export record"
        assert kinds == {
            ("event set aside by the collector", ""): 2,
            (odd, "KeyError('task_id')"): 1,
            (odd, "KeyError('source_type')"): 1,
        }
        assert len(listed(client, TASKS, "task_id", "attempt_number")) > 50


def test_a_directory_without_exports_has_its_logs(tmp_path: Path) -> None:
    directory = tmp_path / "session_2026-11-15_19-18-08_055078_15551"
    (directory / "logs").mkdir(parents=True)
    (directory / "logs" / "raylet.out").write_text("hello\n")
    place = kept.directory(tmp_path / "store")
    done = rayhistory(place, "import-dir", str(directory), "--name", "disk")
    assert done.returncode == 0, done.stderr
    assert "No export files were found" in done.stdout
    with opened(tmp_path / "store", tmp_path / "cache") as client:
        file = client.get(f"{base_of(client)}/api/v0/logs/file?node_id=unknown&filename=raylet.out")
        assert file.text == "hello\n"


@pytest.mark.parametrize("number", ["1e18", "-1e18", "1e300", "NaN", "253402300800"])
def test_a_time_that_no_calendar_has_costs_its_line(tmp_path: Path, number: str) -> None:
    directory = tmp_path / "session_2026-11-15_19-18-08_055078_15551"
    (directory / "logs/export_events").mkdir(parents=True)
    (directory / "logs/export_events/event_EXPORT_TASK.log").write_text(
        f'{{"timestamp": 1794770300, "n": 1}}\n{{"timestamp": {number}}}\n{{"timestamp": 1794770300, "n": 2}}\n'
    )
    place = kept.directory(tmp_path / "store")
    done = rayhistory(place, "import-dir", str(directory), "--name", "disk")
    assert done.returncode == 0, done.stderr
    assert "1 lines of export files could not be read" in done.stdout
    (records,) = [gzip.decompress(data) for key, data in place.objects().items() if key.endswith(".jsonl.gz")]
    assert [json.loads(line)["timestamp"][17:] for line in records.splitlines()] == ["20.000000Z", "20.000001Z"]


def test_a_running_ray_is_not_imported(plain: PlainSession) -> None:
    assert "this Ray is running" in plain.refused
    assert len(plain.refused.strip().splitlines()) == 1


def test_a_session_that_a_collector_records_is_left_alone(plain: PlainSession, tmp_path: Path) -> None:
    place = kept.directory(tmp_path)
    ref = SessionRef("default", "disk", plain.on_disk.name)
    place.put(session_objects(place.layout, ref, ended_ms=None))
    before = place.objects()
    done = rayhistory(place, "import-dir", str(plain.on_disk), "--name", "disk")
    assert done.returncode == 2
    assert "is being recorded by a collector" in done.stderr
    assert place.objects() == before
    done = rayhistory(place, "import-dir", str(plain.on_disk), "--name", "disk", "--vanished-after", "1ms")
    assert done.returncode == 0, done.stderr
    after = place.objects()
    assert place.layout.end_key(ref) not in after  # how it ended is not ours to say
    assert after[place.layout.start_key(ref)] == before[place.layout.start_key(ref)]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nowhere", "there is no such directory"),
        ("other", "not a session directory of Ray, whose names are like"),
        ("session_2026-11-15_19-18-08_055078_1", "it has no logs"),
    ],
)
def test_what_is_no_session_is_refused_in_one_line(tmp_path: Path, name: str, complaint: str) -> None:
    if name != "nowhere":
        (tmp_path / name).mkdir()
    place = kept.directory(tmp_path / "store")
    done = rayhistory(place, "import-dir", str(tmp_path / name))
    assert done.returncode == 2
    assert complaint in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert place.objects() == {}
