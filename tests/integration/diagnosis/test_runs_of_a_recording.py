"""A recorded session with several jobs as runs: a verdict for each job, and a diagnosis beside earlier runs."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from failures.fixtures import unpack
from integration.diagnosis.test_recorded_failures import get
from rayhistory.runs.session_summary import StoredSummary
from rayhistory.sessions import SessionRef
from rayhistory.storage.local import LocalStore
from support.generated_runs import DAY_MS, LAYOUT, announce, ref_of

CASE = "healthy-plain-task_raises-driver_raises"


def summarized(directory: Path) -> tuple[SessionRef, StoredSummary]:
    """Unpack the recording, and let a comparison build its summary."""
    ref = unpack(CASE, directory)
    name = f"{ref.namespace}/{ref.cluster}/{ref.session}"
    response = get(directory, f"/api/history/compare?session={name}&session={name}")[0]
    assert response.status_code == 200, response.text
    (announced,) = (directory / "store" / LAYOUT.run_inbox_prefix()).rglob(f"{ref.cluster}*.json")
    return ref, msgspec.json.decode(announced.read_bytes(), type=StoredSummary)


def good_run(stored: StoredSummary, nights_before: int) -> StoredSummary:
    """Return a session like this one, some nights before, in which everything succeeded."""
    summary, shift = stored.summary, nights_before * DAY_MS
    jobs = [
        msgspec.structs.replace(
            job, status="SUCCEEDED", verdict=None, started_ms=(job.started_ms or 0) - shift,
            ended_ms=(job.ended_ms or 0) - shift,
        )
        for job in summary.jobs
    ]  # fmt: skip
    changed = msgspec.structs.replace(
        summary, cluster=f"{summary.cluster}-{nights_before}", jobs=jobs, verdict=None, fingerprints=[],
        started_ms=(summary.started_ms or 0) - shift,
    )  # fmt: skip
    return msgspec.structs.replace(stored, summary=changed)


async def store_runs(directory: Path, runs: list[StoredSummary]) -> None:
    store = LocalStore(directory / "store")
    await announce(store, runs)
    for each in runs:
        await store.put(LAYOUT.metadata_key(ref_of(each)), b"")


def test_each_job_has_its_own_verdict_and_share_and_the_diagnosis_says_what_is_new(tmp_path: Path) -> None:
    ref, stored = summarized(tmp_path)
    jobs = stored.summary.jobs
    assert len(jobs) == 3
    codes: list[Any] = [job.verdict.code if job.verdict else None for job in jobs]
    assert [job.status for job in jobs if job.verdict] == ["FAILED", "FAILED"]
    assert sorted(filter(None, codes)) == ["driver_exception", "user_exception"]
    shares = [job.hours.cpu.allocated for job in jobs if job.hours]
    assert abs(sum(shares) - stored.summary.cpu.allocated) < 1e-4

    path = f"{ref.url}api/history/diagnosis"
    alone = get(tmp_path, path)[0].json()
    assert {"code": "regression", "reason": "there is no earlier run of the same job"} in alone["skipped"]
    asyncio.run(store_runs(tmp_path, [good_run(stored, nights) for nights in (1, 2)]))
    found, page = get(tmp_path, path, f"{ref.url}diagnosis")
    novelties = [finding["new"] for finding in found.json()["findings"] if finding["fingerprint"] and finding["root"]]
    assert novelties
    assert all(novelties)
    assert ">New</span>" in page.text
