"""An index that grew by parts equals one fold, and an extension costs what is new."""

import asyncio
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayhistory.index.fold import part_compaction
from rayhistory.index.fold.fold_process import FoldJob, fold
from rayhistory.index.fold.part_tables import KEYS
from rayhistory.index.manifest import Manifest, Part
from rayhistory.sessions import Layout
from rayhistory.sessions.records import Closing
from support.folding import (
    END,
    RECORDED,
    REF,
    as_lines,
    files_of,
    fold_session,
    put,
    rows,
    settings_for,
    tables,
    tables_as_of,
)
from support.skewed_events import EVENTS as SKEWED

LAWS = settings(
    max_examples=int(os.environ.get("RAYHISTORY_LAWS") or 1),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
EVENTS = RECORDED + SKEWED
MIDDLE_NS = 1_794_770_327_000_000_000


STEPS = 7
"""Extensions after which parts have been compacted, and others have not."""


@pytest.fixture(scope="module", autouse=True)
def frequent_compaction() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_compaction, "FAN_IN", 3)
        yield


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory, frequent_compaction: None) -> tuple[Path, Manifest]:
    directory = tmp_path_factory.mktemp("grown")
    return directory, grow(directory, STEPS)


@pytest.mark.slow
@LAWS
@given(seed=st.integers(0, 10**6), steps=st.integers(2, 6), memory=st.sampled_from(["512Ki", "1Gi"]))
def test_any_sequence_of_extensions_and_compactions_equals_one_fold(
    tmp_path_factory: pytest.TempPathFactory, seed: int, steps: int, memory: str
) -> None:
    """Events come in any order, some twice; the session ends, comes back, and ends later than it was thought."""
    whole, grown = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("grown")
    rng = random.Random(seed)
    put(whole, 0, as_lines(EVENTS))
    events = rng.sample(EVENTS, len(EVENTS)) + rng.sample(EVENTS, 40)
    for step in range(steps):
        put(grown, step, as_lines(events[step::steps]))
        closing = rng.choice([None, None, Closing(END.ns, clean=False), Closing(0, clean=True)])
        fold_session(grown, closing, memory=memory)
    last = fold_session(grown)
    expected = fold_session(whole)
    assert tables(grown, last) == tables(whole, expected)
    assert last.counts.tasks == expected.counts.tasks
    assert last.counts.failed_tasks == expected.counts.failed_tasks
    assert tables_as_of(grown, last, MIDDLE_NS) == tables_as_of(whole, expected, MIDDLE_NS)


def grow(directory: Path, steps: int, closing: Closing | None = None) -> Manifest:
    for step in range(steps):
        put(directory, step, as_lines(RECORDED[step::steps]))
        manifest = fold_session(directory, closing)
    return manifest


def repair(directory: Path, closing: Closing | None) -> Manifest:
    with tempfile.TemporaryDirectory() as scratch:
        job = FoldJob(msgspec.to_builtins(settings_for(directory)), REF, closing, scratch, repair=True)
        return asyncio.run(fold(job, lambda progress, detail: None))


def batch_count(part: Part) -> int:
    return sum(last - first + 1 for first, last in part.batches)


def test_repeated_events_write_no_rows_of_tasks(tmp_path: Path) -> None:
    """Events leave a node in packs first, and again in an object of their own."""
    put(tmp_path, 0, as_lines(RECORDED))
    first = fold_session(tmp_path, None)
    put(tmp_path, 1, as_lines(RECORDED))
    second = fold_session(tmp_path, None)
    assert [part.files for part in second.parts] == [part.files for part in first.parts]
    assert second.parts[0].batches == [(1, 2)], "if the part is lost, the copies are read again"


def test_index_grows_in_a_directory_with_an_apostrophe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "it's"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    put(directory, 0, as_lines(RECORDED[: len(RECORDED) // 2]))
    fold_session(directory, None)
    put(directory, 1, as_lines(RECORDED[len(RECORDED) // 2 :]))
    assert len(fold_session(directory, None).parts) == 2


def test_unchanged_small_tables_are_not_uploaded_again(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(RECORDED))
    first = fold_session(tmp_path, None)
    put(tmp_path, 1, as_lines(RECORDED[:1]))
    second = fold_session(tmp_path, None)
    changed = {name for name, files in second.files.items() if files != first.files[name]}
    assert changed <= {"merged.life_signs", "merged.gaps", "gaps"}


def test_session_end_rewrites_only_open_attempts(tmp_path: Path) -> None:
    events = [event for event in RECORDED if event["timestamp"] < "2026-11-15T19:18:45"]
    put(tmp_path, 0, as_lines(events))
    running = fold_session(tmp_path, None)
    open_attempts = rows(
        tmp_path, running, "SELECT count(*) FROM tasks WHERE finished_ns IS NULL AND failed_ns IS NULL"
    )[0][0]
    ended = fold_session(tmp_path, END)
    assert ended.parts[0].files == running.parts[0].files
    assert sum(part.rows for part in ended.parts[1:]) == open_attempts > 0


@pytest.mark.slow
def test_compaction_keeps_few_parts_and_no_replaced_rows(grown: tuple[Path, Manifest]) -> None:
    _, manifest = grown
    assert len(manifest.parts) < STEPS
    assert max(map(batch_count, manifest.parts)) > 1
    assert sum(part.rows - part.superseded for part in manifest.parts) == manifest.task_counts["rows"]


@pytest.mark.slow
@pytest.mark.parametrize("missing", [True, False])
def test_lost_part_is_rebuilt_from_its_own_events(tmp_path: Path, grown: tuple[Path, Manifest], missing: bool) -> None:
    """Rows that it had replaced count again until then."""
    directory, manifest = shutil.copytree(grown[0], tmp_path, dirs_exist_ok=True), grown[1]
    expected = tables(directory, manifest)
    lost = min(manifest.parts, key=batch_count)
    for file in lost.files[KEYS]:
        path = directory / Layout().index_file_key(REF, file.folder, KEYS, file.number)
        path.unlink() if missing else path.write_bytes(os.urandom(path.stat().st_size))
    details: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        job = FoldJob(msgspec.to_builtins(settings_for(directory)), REF, None, scratch, repair=True)
        repaired = asyncio.run(fold(job, lambda _, detail: details.append(detail)))
    assert lost.name not in {part.name for part in repaired.parts}
    assert f"{batch_count(lost)} of {STEPS} objects to read" in details
    assert tables(directory, repaired) == expected
    assert repaired.counts.tasks == manifest.counts.tasks


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1, 2])
def test_attempt_is_listed_once_after_one_of_its_parts_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Each part replaces rows of the one before. Without the middle one, the first and the last row are valid."""
    monkeypatch.setattr(part_compaction, "FAN_IN", 8)
    put(tmp_path / "whole", 0, as_lines(RECORDED))
    manifest = grow(tmp_path / "grown", 3, END)
    for file in manifest.parts[number].files["tasks"]:
        (tmp_path / "grown" / Layout().index_file_key(REF, file.folder, "tasks", file.number)).unlink()
    repaired = repair(tmp_path / "grown", END)
    assert len(repaired.parts) == 3
    assert tables(tmp_path / "grown", repaired) == tables(tmp_path / "whole", fold_session(tmp_path / "whole", END))


@pytest.mark.slow
@pytest.mark.parametrize("closing", [None, END])
def test_attempts_end_again_after_the_part_was_lost_in_which_they_ended(
    tmp_path: Path, closing: Closing | None
) -> None:
    """Their worker or job ended. No event of that part is about these attempts."""
    of_tasks = [event for event in EVENTS if event["eventType"].startswith("TASK_")]
    others = [event for event in EVENTS if not event["eventType"].startswith("TASK_")]
    put(tmp_path / "whole", 0, as_lines(EVENTS))
    for step, events in enumerate((of_tasks, others)):
        put(tmp_path / "grown", step, as_lines(events))
        manifest = fold_session(tmp_path / "grown", closing)
    for file in manifest.parts[-1].files["tasks"]:
        (tmp_path / "grown" / Layout().index_file_key(REF, file.folder, "tasks", file.number)).unlink()
    repaired = repair(tmp_path / "grown", closing)
    assert tables(tmp_path / "grown", repaired) == tables(tmp_path / "whole", fold_session(tmp_path / "whole", closing))


@pytest.mark.slow
def test_extension_survives_a_missing_part(tmp_path: Path) -> None:
    manifest = grow(tmp_path / "grown", 2)
    for path in files_of(tmp_path / "grown", manifest, KEYS)[:1]:
        shutil.rmtree(path.parent)
    for directory in ("grown", "whole"):
        put(tmp_path / directory, 5, as_lines(SKEWED))
    put(tmp_path / "whole", 0, as_lines(RECORDED))
    expected = tables(tmp_path / "whole", fold_session(tmp_path / "whole"))
    assert tables(tmp_path / "grown", fold_session(tmp_path / "grown")) == expected


@pytest.mark.slow
def test_overtaken_fold_publishes_nothing(tmp_path: Path) -> None:
    """Another process has published since it began: its parts may have been compacted and deleted."""
    put(tmp_path, 0, as_lines(RECORDED[:100]))
    fold_session(tmp_path, None)
    put(tmp_path, 1, as_lines(RECORDED[100:]))
    others: list[Manifest] = []

    def overtake(_: float, detail: str) -> None:
        if detail == "writing the index":
            with ThreadPoolExecutor(1) as thread:
                others.append(thread.submit(fold_session, tmp_path, None).result())

    with tempfile.TemporaryDirectory() as scratch:
        job = FoldJob(msgspec.to_builtins(settings_for(tmp_path)), REF, None, scratch)
        overtaken = asyncio.run(fold(job, overtake))
    assert [overtaken] == others
    assert overtaken.generation == 2


@pytest.mark.parametrize("tasks_per_step", [1, 2_000])
def test_rows_are_rewritten_seldom(monkeypatch: pytest.MonkeyPatch, tasks_per_step: int) -> None:
    monkeypatch.setattr(part_compaction, "FAN_IN", 8)
    parts: list[Part] = []
    written = 0
    for step in range(1000):
        parts.append(Part(f"{step}", {}, tasks_per_step))
        written += tasks_per_step
        if chosen := part_compaction.choose_parts(parts):
            size = sum(part.rows for part in chosen)
            parts = [part for part in parts if part not in chosen] + [Part(f"c{step}", {}, size)]
            written += size
        assert len(parts) <= 4 * 8
    assert written <= 4 * 1000 * tasks_per_step
