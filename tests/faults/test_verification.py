"""The check after a bad day says what is wrong: each kind of loss, repetition and invention is noticed."""

import json
import random
from collections import Counter
from pathlib import Path

import duckdb
import pytest

from faults.logwriters import Life
from faults.packfiles import EVENTS, LOG, Stored, read_streams
from faults.reckoning import Kept, check_events, check_index, check_logs, check_plain, check_seal, folded
from faults.workload import task_events
from rayhistory.collector.packs import PackSeries
from rayhistory.layout.packs import Catalog

NODE = "ab" * 28


def test_a_day_that_was_survived_has_no_problems() -> None:
    kept = Kept({NODE: Counter(["a", "b", "b"])}, {"a": {}, "b": {}}, {}, {NODE: {"received": 3, "stored": 3}})
    assert not list(check_events(kept, {"a"}, Counter(["a", "b", "b"])))
    assert not list(check_seal(kept, NODE, exact=True))


@pytest.mark.parametrize(
    ("must", "sent", "problem"),
    [
        ({"a", "b", "c"}, Counter("abc"), "1 of 3 acknowledged events are lost"),
        ({"a"}, Counter("a"), "1 events were never sent"),
        ({"a"}, Counter("ab") + Counter("c"), "1 events are stored more often than they were sent"),
    ],
)
def test_events_that_are_lost_invented_or_repeated_are_noticed(
    must: set[str], sent: Counter[str], problem: str
) -> None:
    kept = Kept({NODE: Counter("ab") + Counter("b")}, {"a": {}, "b": {}})
    assert problem in list(check_events(kept, must, sent))


@pytest.mark.parametrize(
    ("seal", "problem"),
    [
        (None, "has no seal"),
        ({"received": 2, "stored": 2}, "2 received and 2 stored, and 1 are there"),
        ({"received": 2, "stored": 1}, "2 received and 1 stored"),
        ({"received": 1, "stored": 1, "dropped": 1}, "dropped: 1"),
        ({"received": 1, "stored": 1, "left_behind": ["a"]}, "left_behind"),
    ],
)
def test_a_seal_that_is_missing_or_wrong_is_noticed(seal: dict[str, object] | None, problem: str) -> None:
    kept = Kept({NODE: Counter("a")}, seals={NODE: seal} if seal else {})
    assert any(problem in each for each in check_seal(kept, NODE, exact=True))


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        ([], "10 of 10 bytes of a.log"),
        ([b"mark 1\nab"], "1 of 10 bytes of a.log"),
        ([b"mark 1\nabX"], "never written"),
        ([b"mark 1\nabc", b"mark 1\na"], "is there 2 times"),
        ([b"mark 1\nabc", b"other"], "is no file that there was"),
    ],
)
def test_log_bytes_that_are_lost_wrong_repeated_or_invented_are_noticed(contents: list[bytes], problem: str) -> None:
    kept = Kept(streams={NODE: [Stored("a.log", LOG, content) for content in contents]})
    life = Life("a.log", b"mark 1\n", bytearray(b"mark 1\nabc"))
    assert any(problem in each for each in check_logs(kept, NODE, [life]))


def test_of_a_file_that_was_cut_only_what_was_seen_has_to_be_there(tmp_path: Path) -> None:
    kept = Kept(streams={NODE: [Stored("a.log", LOG, b"mark 1\na")]})
    life = Life("a.log", b"mark 1\n", bytearray(b"mark 1\nabc"), settled=8, whole=False)
    assert not list(check_logs(kept, NODE, [life]))
    life.settled = 9
    assert list(check_logs(kept, NODE, [life]))


def test_a_whole_file_that_is_missing_or_different_is_noticed(tmp_path: Path) -> None:
    place = tmp_path / "cluster-history" / "raycluster" / "default" / "c" / "s" / NODE / "logs"
    place.mkdir(parents=True)
    (place / "a.log").write_bytes(b"abc")
    files = {"a.log": b"abc"}
    assert not list(check_plain(tmp_path, "c", "s", NODE, files))
    assert list(check_plain(tmp_path, "c", "s", NODE, {"a.log": b"abcd"}))
    assert list(check_plain(tmp_path, "c", "s", NODE, {"b.log": b""}))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("SELECT * FROM tasks", None),
        ("SELECT * FROM tasks UNION ALL (SELECT * FROM tasks LIMIT 1)", "1 attempts are shown twice"),
        ("SELECT * FROM tasks OFFSET 1", "are not shown"),
        ("SELECT * REPLACE ('RUNNING' AS state) FROM tasks", "are shown wrong"),
        ("SELECT * REPLACE (NULL AS error_message) FROM tasks", "are shown wrong"),
        ("SELECT * REPLACE (attempt_number + 7 AS attempt_number) FROM tasks", "that there never were"),
    ],
)
def test_an_index_that_shows_something_else_is_noticed(tmp_path: Path, change: str, problem: str | None) -> None:
    dice = random.Random(1)
    events = [event for _ in range(30) for part in task_events(dice, "s", NODE) for event in part]
    kept = Kept(events={event["eventId"]: event for event in events})
    rows = [(*key, *value) for key, value in folded(kept).items()]
    place = tmp_path / "ray-history" / "index" / "default" / "c" / "s"
    (place / "1-x").mkdir(parents=True)
    (place / "manifest-1.json").write_text(json.dumps({"build": "1-x"}))
    with duckdb.connect() as database:
        database.execute(
            "CREATE TABLE tasks (task_id TEXT, attempt_number INT, state TEXT, name TEXT, error_message TEXT, "
            "closed_by_history BOOLEAN)"
        )
        database.executemany("INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?)", rows)
        database.execute(f"COPY ({change}) TO '{place}/1-x/tasks.0.parquet'")
    found = list(check_index(tmp_path, "c", "s", kept))
    assert not found if problem is None else any(problem in each for each in found)


def test_packs_are_read_as_their_description_says(tmp_path: Path) -> None:
    """What the collector wrote, with its checkpoints and repetitions; and half a pack is none."""
    logs, node = tmp_path / "logs", tmp_path / "node"
    logs.mkdir()
    series = PackSeries(logs, Catalog())
    for number in range(150):
        with (logs / "a.log").open("a") as file:
            file.write(f"line {number}\n" * (1 + number % 7))
        if number == 70:
            (logs / "a.log").rename(logs / "a.log.1")
        sealed = series.make()
        assert sealed
        path = node / sealed.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sealed.data)
    stored = read_streams(node)
    assert {stream.name: stream.content for stream in stored} == {
        path.name: path.read_bytes() for path in logs.iterdir()
    }
    assert EVENTS not in {stream.kind for stream in stored}
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(AssertionError):
        read_streams(node)
