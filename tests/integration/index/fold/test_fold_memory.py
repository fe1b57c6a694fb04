"""Sessions whose texts are long: every task failed, each with a traceback, and all of them much alike."""

import asyncio
import base64
import gzip
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from folding import END, REF, as_lines, fold_session, put, rows, settings_for, tables
from rayhistory.events.columns import Rows
from rayhistory.index.decoding import Decoding, decode
from rayhistory.index.fold import FoldJob, FoldReport
from rayhistory.index.manifest import Manifest
from rayhistory.index.parts import MOST_PARTS, Parts
from rayhistory.index.read import read_source
from rayhistory.index.sources import Kind, Source
from rayhistory.storage import open_store

MOMENT = "2026-11-15T19:18:40.151619287Z"
TRACEBACK = "Traceback (most recent call last):\n" + "".join(
    f'  File "/home/ray/site-packages/package/module_{number}.py", line {number * 7}, in function_{number}\n'
    f"    return call_{number}(argument, other={number})\n"
    for number in range(100)
)
"""12 kB, as those of deep frameworks are."""


def failures(first: int, count: int, message: str = TRACEBACK) -> list[dict[str, object]]:
    chance = random.Random(first)
    return [
        {
            "eventId": f"{number}",
            "eventType": "TASK_LIFECYCLE_EVENT",
            "timestamp": MOMENT,
            "taskLifecycleEvent": {
                "taskId": base64.b64encode(chance.randbytes(8) + b"\xff" * 12 + b"\1\0\0\0").decode(),
                "taskAttempt": 0,
                "jobId": "AQAAAA==",
                "stateTransitions": [{"state": "FAILED", "timestamp": MOMENT}],
                "rayErrorInfo": {"errorType": "TASK_EXECUTION_EXCEPTION", "errorMessage": f"{message}{number}"},
            },
        }
        for number in range(first, first + count)
    ]


def test_long_rows_are_written_before_there_are_many_of_them(tmp_path: Path) -> None:
    """Each decoder has its share of the memory: fifty thousand rows may be far more than that."""
    data = as_lines(failures(0, 1000))
    source = Source(put(tmp_path, 0, data), len(data), Kind.EVENTS)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    work = Decoding(settings_for(tmp_path, "4Mi"), scratch, Parts())
    decoded = asyncio.run(decode(work, [source], "0"))
    assert len(list(scratch.glob("task_updates-*.parquet"))) > 5
    assert (decoded.events, decoded.raw_bytes) == (1000, len(data))
    assert 0.8 * len(data) < decoded.long_bytes < len(data)


def test_a_session_of_long_texts_is_folded_in_more_parts(tmp_path: Path) -> None:
    """How many it takes is known when it is decoded: compressed, they are almost nothing."""
    put(tmp_path, 0, gzip.compress(as_lines(failures(0, 500))), suffix=".jsonl.gz")
    expected = tables(tmp_path, fold_session(tmp_path))
    first = fold_session(tmp_path, memory="16Mi", fresh=True)
    assert len(first.files["tasks"]) > 2
    assert tables(tmp_path, first) == expected
    put(tmp_path, 1, as_lines(failures(500, 1)))
    again = fold_session(tmp_path, memory="16Mi")
    assert len(again.files["tasks"]) > 2, "what was read before is as long as it was"
    assert rows(tmp_path, again, "SELECT count(*), min(length(error_message)) > 11000 FROM tasks") == [(501, True)]


def test_a_session_of_usual_texts_is_not(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(failures(0, 2000, "Traceback")))
    assert len(fold_session(tmp_path, memory="16Mi").files["tasks"]) == 1


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 300), st.integers(1, 1000))
def test_finer_parts_are_pieces_of_those_that_were_written(written: int, wanted: int) -> None:
    parts = Parts(written)
    finer = parts.finer(wanted)
    assert min(wanted, MOST_PARTS // 2) / 1.25 <= finer.number <= MOST_PARTS
    task_ids = [f"{number:03x}" for number in range(16**3)]
    places = dict(parts.split(task_ids))
    for part, found in finer.split(task_ids):
        assert set(found) <= set(places[finer.file(part)])


@pytest.mark.parametrize("between", [",", ",\n ", "\n,\t"])
def test_a_large_array_is_decoded_in_portions(tmp_path: Path, between: str) -> None:
    events = failures(0, 1000)
    data = f"[{between.join(map(json.dumps, events))}]".encode()
    source = Source(put(tmp_path, 0, data, suffix=""), len(data), Kind.EVENTS)
    found = Rows()

    async def portions() -> list[tuple[int, int]]:
        store = open_store(settings_for(tmp_path))
        return [portion async for portion in read_source(store, source, found)]

    read = asyncio.run(portions())
    assert len(read) > 3
    assert max(size for _, size in read) < 5 << 20
    assert sum(count for count, _ in read) == len(found.rows("task_updates")) == 1000


def tree(pid: int) -> list[int]:
    """The process, and all below it."""
    try:
        children = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return [pid]
    return [pid, *(below for found in children for child in found for below in tree(int(child)))]


def memory_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/status").read_text().partition("RssAnon:")[2].split()[0]) << 10
    except (OSError, IndexError):
        return 0


def fold_watched(directory: Path, memory: str) -> tuple[Manifest, int]:
    """Folds in a process of its own; with the most memory that it and those below it had at once."""
    (directory / "scratch").mkdir()
    job = FoldJob(msgspec.to_builtins(settings_for(directory, memory)), REF, END, str(directory / "scratch"))
    (directory / "job.json").write_bytes(msgspec.json.encode(job))
    with (directory / "job.json").open("rb") as given, (directory / "said").open("wb") as said:
        process = subprocess.Popen([sys.executable, "-m", "rayhistory.index.fold"], stdin=given, stdout=said)
    most = 0
    while process.poll() is None:
        most = max(most, sum(map(memory_of, tree(process.pid))))
        time.sleep(0.03)
    assert process.returncode == 0
    report = msgspec.json.decode((directory / "said").read_bytes().splitlines()[-1], type=FoldReport)
    assert report.manifest
    return report.manifest, most


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_long_texts_are_folded_in_the_memory_that_was_given(tmp_path: Path) -> None:
    """300 MB of them, of which the store has six: the fold's processes together have at most half as much again."""
    for number in range(4):
        lines = as_lines(failures(number * 6000, 6000))
        put(tmp_path, number, gzip.compress(lines, 1), suffix=".jsonl.gz")
    manifest, most = fold_watched(tmp_path, "512Mi")
    assert manifest.counts.failed_tasks == 24_000
    assert 100 << 20 < most <= 768 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_an_object_of_a_gigabyte_is_read_in_the_memory_that_was_given(tmp_path: Path) -> None:
    """Nearly all of it are events of a kind that nobody knows; what stands before and after them is read."""
    unknown = as_lines([{"eventId": "", "eventType": "NEWS", "timestamp": MOMENT, "news": {"text": "x" * 60_000}}])
    number = -(-(10**9) // len(unknown))
    object_path = tmp_path / put(tmp_path, 0, as_lines(failures(0, 10, "Traceback")))
    with object_path.open("ab") as file:
        for _ in range(number):
            file.write(unknown)
        file.write(as_lines(failures(10, 10, "Traceback")))
    manifest, most = fold_watched(tmp_path, "512Mi")
    assert object_path.stat().st_size > 10**9
    object_path.unlink()
    assert manifest.counts.failed_tasks == 20
    gaps = rows(tmp_path, manifest, "SELECT kind, detail, count FROM gaps WHERE kind = 'unknown event type'")
    assert gaps == [("unknown event type", "NEWS", number)]
    assert most <= 768 << 20
