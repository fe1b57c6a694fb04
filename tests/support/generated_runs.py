"""Summaries of generated sessions: a fleet of jobs that run every night, in the inbox of a store."""

import asyncio
import dataclasses
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from starlette.testclient import TestClient

from rayhistory.index.query.run_figures import FunctionFigures
from rayhistory.runs.run_table import RunTable
from rayhistory.runs.session_summary import (
    ResourceHours,
    RunJob,
    SeenFingerprint,
    SessionDetails,
    SessionSummary,
    StoredSummary,
    SummaryVerdict,
)
from rayhistory.server.app import create_app
from rayhistory.sessions import Layout, SessionRef
from rayhistory.settings import Settings
from rayhistory.storage import Store, open_store
from support.recorded_sample import settings_for

LAYOUT = Layout()
DAY_MS = 86_400_000
FIRST_MS = 1_793_500_800_000
"""2026-11-01T00:00:00Z."""


def session_name(started_ms: int, number: int = 1) -> str:
    started = datetime.fromtimestamp(started_ms / 1000, UTC)
    return f"session_{started:%Y-%m-%d_%H-%M-%S}_{started_ms % 1000:06d}_{number}"


def generated(
    number: int = 0,
    *,
    namespace: str = "default",
    name: str = "nightly",
    started_ms: int = FIRST_MS,
    duration_ms: int = 600_000,
    status: str = "SUCCEEDED",
    state: str = "ended",
    fingerprint: str | None = None,
    ray_version: str = "2.60.0",
    owner: bool = True,
    functions: int = 8,
) -> StoredSummary:
    """Return the summary of one run of a nightly job."""
    failed = status == "FAILED"
    headline = "ValueError in load (train.py:12)"
    is_over = state != "running"
    verdict = SummaryVerdict(code="user_exception", headline=headline, fingerprint=fingerprint) if failed else None
    seen = [SeenFingerprint(fingerprint=fingerprint, code="user_exception", headline=headline, count=1,
                            first_ms=started_ms, last_ms=started_ms)] if fingerprint else []  # fmt: skip
    job = RunJob(
        id=f"raysubmit_{number}", job_id="02000000", entrypoint="python train.py --epochs 3",
        status=status if is_over else "RUNNING", started_ms=started_ms,
        ended_ms=started_ms + duration_ms if is_over else None,
    )  # fmt: skip
    summary = SessionSummary(
        namespace=namespace,
        cluster=f"{name}-{number:05d}",
        session=session_name(started_ms, number + 1),
        owner_kind="rayjob" if owner else None,
        owner_name=name if owner else None,
        state=state,
        started_ms=started_ms,
        ended_ms=started_ms + duration_ms if is_over else None,
        jobs=[job],
        verdict=verdict,
        fingerprints=[fingerprint] if fingerprint else [],
        cpu=ResourceHours(allocated=8.0, reserved=6.0, used=4.0),
        gpu=ResourceHours(allocated=2.0, reserved=2.0, used=0.5),
        ray_version=ray_version,
        tasks=1000,
        nodes=2,
        size_bytes=10_000_000,
        index_bytes=200_000,
    )
    figures = [
        FunctionFigures(name=f"step_{step}", count=100, p50_ms=duration_ms / (20 + step), p95_ms=duration_ms / 10,
                        max_ms=duration_ms // 5, waiting_ms=1000, running_ms=duration_ms)
        for step in range(functions)
    ]  # fmt: skip
    return StoredSummary(summary=summary, details=SessionDetails(functions=figures, fingerprints=seen))


def fleet(
    sessions: int, *, jobs: int = 50, days: int = 30, seed: int = 1, functions: int = 8
) -> Iterable[StoredSummary]:
    """Yield the runs of many jobs over some days. About one run in ten fails."""
    chance = random.Random(seed)
    for number in range(sessions):
        name = f"job-{number % jobs:03d}"
        started = FIRST_MS + number * days * DAY_MS // sessions
        failed = chance.random() < 0.1
        yield generated(
            number, name=name, namespace=f"team-{number % 5}", started_ms=started,
            duration_ms=int(600_000 * chance.uniform(0.9, 1.1)), status="FAILED" if failed else "SUCCEEDED",
            fingerprint=f"{number % 7:016x}" if failed else None, functions=functions,
        )  # fmt: skip


def ref_of(stored: StoredSummary) -> SessionRef:
    return SessionRef(*stored.summary.identity)


async def announce(store: Store, stored: Iterable[StoredSummary], generation: int = 1, layout: Layout = LAYOUT) -> None:
    """Put summaries into the inbox, as builds do."""

    async def put(each: StoredSummary) -> None:
        await store.put(layout.run_inbox_key(ref_of(each), generation, "ab"), msgspec.json.encode(each))

    batch = list(stored)
    for start in range(0, len(batch), 200):
        await asyncio.gather(*map(put, batch[start : start + 200]))


async def identities(table: RunTable) -> set[tuple[str, str, str]]:
    return set((await table.load(max_age_s=0)).summaries)


def store_runs(settings: Settings, stored: list[StoredSummary]) -> None:
    """Put summaries into the inbox, and write the metadata keys that make their sessions visible."""

    async def work() -> None:
        store = open_store(settings, writable=True)
        await announce(store, stored)
        for each in stored:
            await store.put(LAYOUT.metadata_key(ref_of(each)), b"")

    asyncio.run(work())


@contextmanager
def serving_runs(directory: Path, stored: list[StoredSummary], **overrides: Any) -> Iterator[TestClient]:
    """Yield a client of a server with these sessions."""
    settings = dataclasses.replace(settings_for(directory), index_ahead=False, **overrides)
    store_runs(settings, stored)
    with TestClient(create_app(settings)) as client:
        yield client
