"""Memory of folds of sessions with long texts: every task failed with a long traceback."""

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

from rayhistory.events.row_buffer import RowBuffer
from rayhistory.index.fold.fold_process import FoldJob, FoldReport
from rayhistory.index.fold.parallel_decode import DecodeWork, decode
from rayhistory.index.fold.partitions import MAX_PARTITIONS, Partitions
from rayhistory.index.fold.sources import Source, SourceKind
from rayhistory.index.manifest import Manifest
from rayhistory.storage import open_store
from support.folding import END, REF, as_lines, fold_session, portions_of, put, rows, settings_for, tables

TIMESTAMP = "2026-11-15T19:18:40.151619287Z"
TRACEBACK = "Traceback (most recent call last):\n" + "".join(
    f'  File "/home/ray/site-packages/package/module_{number}.py", line {number * 7}, in function_{number}\n'
    f"    return call_{number}(argument, other={number})\n"
    for number in range(100)
)
"""12 kB, which is typical of deep frameworks."""


def failures(first: int, count: int, message: str = TRACEBACK) -> list[dict[str, object]]:
    rng = random.Random(first)
    return [
        {
            "eventId": f"{number}",
            "eventType": "TASK_LIFECYCLE_EVENT",
            "timestamp": TIMESTAMP,
            "taskLifecycleEvent": {
                "taskId": base64.b64encode(rng.randbytes(8) + b"\xff" * 12 + b"\1\0\0\0").decode(),
                "taskAttempt": 0,
                "jobId": "AQAAAA==",
                "stateTransitions": [{"state": "FAILED", "timestamp": TIMESTAMP}],
                "rayErrorInfo": {"errorType": "TASK_EXECUTION_EXCEPTION", "errorMessage": f"{message}{number}"},
            },
        }
        for number in range(first, first + count)
    ]


def test_long_rows_are_written_early(tmp_path: Path) -> None:
    """Each decoder has a share of the memory, which far fewer than 50,000 long rows exceed."""
    data = as_lines(failures(0, 1000))
    source = Source(put(tmp_path, 0, data), len(data), SourceKind.EVENTS)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    work = DecodeWork(settings_for(tmp_path, "4Mi"), scratch, Partitions())
    decoded = asyncio.run(decode(work, [source], "0"))
    assert len(list(scratch.glob("task_updates-*.parquet"))) > 5
    assert (decoded.events, decoded.raw_bytes) == (1000, len(data))
    assert 0.8 * len(data) < decoded.long_bytes < len(data)


def test_long_texts_are_folded_in_more_partitions(tmp_path: Path) -> None:
    """The number of partitions is known after decoding: compressed, these texts are tiny."""
    put(tmp_path, 0, gzip.compress(as_lines(failures(0, 500))), suffix=".jsonl.gz")
    expected = tables(tmp_path, fold_session(tmp_path))
    first = fold_session(tmp_path, memory="16Mi", fresh=True)
    assert len(first.files_of("tasks")) > 2
    assert tables(tmp_path, first) == expected
    put(tmp_path, 1, as_lines(failures(500, 1)))
    again = fold_session(tmp_path, memory="16Mi")
    assert len(again.files_of("tasks")) > 2, "the long rows of the previous generation count too"
    assert rows(tmp_path, again, "SELECT count(*), min(length(error_message)) > 11000 FROM tasks") == [(501, True)]


def test_short_texts_are_folded_in_one_partition(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(failures(0, 2000, "Traceback")))
    assert len(fold_session(tmp_path, memory="16Mi").files_of("tasks")) == 1


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 300), st.integers(1, 1000))
def test_finer_partitions_are_pieces_of_the_written_ones(written: int, wanted: int) -> None:
    partitions = Partitions(written)
    finer = partitions.finer(wanted)
    assert min(wanted, MAX_PARTITIONS // 2) / 1.25 <= finer.count <= MAX_PARTITIONS
    task_ids = [f"{number:03x}" for number in range(16**3)]
    positions = dict(partitions.split(task_ids))
    for partition, found in finer.split(task_ids):
        assert set(found) <= set(positions[finer.file_number(partition)])


@pytest.mark.parametrize("separator", [",", ",\n ", "\n,\t"])
def test_large_array_is_decoded_in_portions(tmp_path: Path, separator: str) -> None:
    events = failures(0, 1000)
    data = f"[{separator.join(map(json.dumps, events))}]".encode()
    source = Source(put(tmp_path, 0, data, suffix=""), len(data), SourceKind.EVENTS)
    found = RowBuffer()

    async def portions() -> list[tuple[int, int]]:
        store = open_store(settings_for(tmp_path))
        return [portion async for portion in portions_of(store, source, found)]

    read = asyncio.run(portions())
    assert len(read) > 3
    assert max(size for _, size in read) < 5 << 20
    assert sum(count for count, _ in read) == len(found.rows("task_updates")) == 1000


def process_tree(pid: int) -> list[int]:
    """The process and all of its descendants."""
    try:
        children = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return [pid]
    return [pid, *(descendant for found in children for child in found for descendant in process_tree(int(child)))]


def memory_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/status").read_text().partition("RssAnon:")[2].split()[0]) << 10
    except (OSError, IndexError):
        return 0


def fold_and_measure(directory: Path, memory: str) -> tuple[Manifest, int]:
    """Fold in a process of its own; return the peak memory of it and its descendants too."""
    (directory / "scratch").mkdir()
    job = FoldJob(msgspec.to_builtins(settings_for(directory, memory)), REF, END, str(directory / "scratch"))
    (directory / "job.json").write_bytes(msgspec.json.encode(job))
    with (directory / "job.json").open("rb") as stdin, (directory / "reports").open("wb") as stdout:
        process = subprocess.Popen(
            [sys.executable, "-m", "rayhistory.index.fold.fold_process"], stdin=stdin, stdout=stdout
        )
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(map(memory_of, process_tree(process.pid))))
        time.sleep(0.03)
    assert process.returncode == 0
    reports = (msgspec.json.decode(line, type=FoldReport) for line in (directory / "reports").read_bytes().splitlines())
    (manifest,) = (report.manifest for report in reports if report.manifest)
    return manifest, peak


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_long_texts_are_folded_within_the_memory_limit(tmp_path: Path) -> None:
    """300 MB of text, 6 MB compressed. All processes together may exceed the setting by half."""
    for number in range(4):
        lines = as_lines(failures(number * 6000, 6000))
        put(tmp_path, number, gzip.compress(lines, 1), suffix=".jsonl.gz")
    manifest, peak = fold_and_measure(tmp_path, "512Mi")
    assert manifest.counts.failed_tasks == 24_000
    assert 100 << 20 < peak <= 768 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_object_of_a_gigabyte_is_read_within_the_memory_limit(tmp_path: Path) -> None:
    """Nearly all of it are events of an unknown type; the events before and after them are read."""
    unknown = as_lines(
        [{"eventId": "", "eventType": "UNKNOWN_EVENT", "timestamp": TIMESTAMP, "news": {"text": "x" * 60_000}}]
    )
    number = -(-(10**9) // len(unknown))
    object_path = tmp_path / put(tmp_path, 0, as_lines(failures(0, 10, "Traceback")))
    with object_path.open("ab") as file:
        for _ in range(number):
            file.write(unknown)
        file.write(as_lines(failures(10, 10, "Traceback")))
    manifest, peak = fold_and_measure(tmp_path, "512Mi")
    assert object_path.stat().st_size > 10**9
    object_path.unlink()
    assert manifest.counts.failed_tasks == 20
    gaps = rows(tmp_path, manifest, "SELECT kind, detail, count FROM gaps WHERE kind = 'event_type_unknown'")
    assert gaps == [("event_type_unknown", "UNKNOWN_EVENT", number)]
    assert peak <= 768 << 20
