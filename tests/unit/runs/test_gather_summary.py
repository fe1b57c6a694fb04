"""A summary says what the tables say, for any part of a recorded session."""

import asyncio
import json
import os
import random
import statistics
from pathlib import Path
from typing import Any

import pytest

from rayhistory.diagnosis.findings import Diagnosis
from rayhistory.index.manifest import Manifest
from rayhistory.index.table_cache import TableCache
from rayhistory.runs.gather_summary import gather_summary
from rayhistory.runs.session_summary import StoredSummary
from rayhistory.runs.summarize import summarize
from rayhistory.sessions import Layout
from rayhistory.sessions.records import Closing
from rayhistory.storage.local import LocalStore
from support.folding import END, RECORDED, REF, as_lines, fold_session, put, rows

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("RAYHISTORY_LAWS", "2"))
VANISHED = Closing(END.ns, clean=False)


def summary_of(directory: Path, manifest: Manifest) -> StoredSummary:
    cache = TableCache(directory / "copies", LocalStore(directory), Layout(), 1 << 30)
    return summarize(asyncio.run(gather_summary(REF, cache.open(REF, manifest), Diagnosis(), {}, None)))


def dicts(directory: Path, manifest: Manifest, table: str, columns: str) -> list[dict[str, Any]]:
    return [
        dict(zip(columns.split(), row, strict=True))
        for row in rows(directory, manifest, f"SELECT {', '.join(columns.split())} FROM {table}")
    ]


def expected_functions(tasks: list[dict[str, Any]]) -> dict[str, tuple[int, int, float | None, int]]:
    """Return count, failures, median and total run time per function, in plain Python."""
    listed = [task for task in tasks if not (task["func_or_class_name"] or "").startswith("JobSupervisor")]
    found = {}
    for name in {task["func_or_class_name"] for task in listed if task["type"] != "DRIVER_TASK"}:
        own = [task for task in listed if task["func_or_class_name"] == name and task["type"] != "DRIVER_TASK"]
        run = {id(task): ended_ms(task) - task["running_ns"] // 10**6 for task in own if ended_ms(task) is not None}
        done = [run[id(task)] for task in own if task["finished_ns"] and id(task) in run]
        failed = sum(task["state"] == "FAILED" and not task["closed_by_history"] for task in own)
        median = statistics.median(done) if done else None
        found[name] = len(own), failed, median, sum(max(0, ms) for ms in run.values())
    return found


def ended_ms(task: dict[str, Any]) -> Any:
    end = task["finished_ns"] or task["failed_ns"] or task["closed_ns"]
    return None if end is None or task["running_ns"] is None else end // 10**6


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_summary_equals_the_tables(tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    share = chosen.uniform(0.3, 1.0)
    put(tmp_path, 0, as_lines([event for event in RECORDED if chosen.random() < share]))
    closing = [END, VANISHED, None][seed % 3]
    manifest = fold_session(tmp_path, closing)
    stored = summary_of(tmp_path, manifest)
    summary = stored.summary

    jobs = dicts(tmp_path, manifest, "jobs", "job_id submission_id status start_time end_time")
    assert sorted((job.id, job.status, job.started_ms, job.ended_ms) for job in summary.jobs) == sorted(
        (job["submission_id"] or job["job_id"], job["status"], job["start_time"], job["end_time"]) for job in jobs
    )
    tasks = dicts(
        tmp_path, manifest, "tasks",
        "func_or_class_name type state closed_by_history running_ns finished_ns failed_ns closed_ns",
    )  # fmt: skip
    functions = {each.name: each for each in stored.details.functions if each.job_id is None}
    assert {
        name: (each.count, each.failed, each.p50_ms, each.running_ms) for name, each in functions.items()
    } == expected_functions(tasks)
    assert summary.tasks == sum(task["type"] != "DRIVER_TASK" for task in tasks)

    nodes = dicts(tmp_path, manifest, "nodes", "resources start_time_ms end_time_ms")
    assert summary.nodes == len(nodes)
    last_ms = (manifest.last_ns or 0) // 10**6
    hours = sum(
        json.loads(node["resources"] or "{}").get("CPU", 0)
        * max(0, (node["end_time_ms"] or last_ms) - node["start_time_ms"])
        for node in nodes
        if node["start_time_ms"] is not None
    )
    assert summary.cpu.allocated == pytest.approx(hours / 3_600_000, abs=1e-5)
    if len(jobs) > 1:
        shares = [job.hours for job in summary.jobs if job.hours]
        assert sum(each.cpu.allocated for each in shares) == pytest.approx(summary.cpu.allocated, abs=1e-4)
    assert summary.state == {None: "running", True: "ended", False: "vanished"}[closing.clean if closing else None]
