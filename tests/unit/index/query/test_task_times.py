"""Where the time of tasks goes: calls that wait at a busy actor are not slow to start."""

import asyncio
from pathlib import Path

import duckdb
import pytest

from rayhistory.index.query.open_index import OpenIndex
from rayhistory.index.query.state_timeline import read_state_timeline
from rayhistory.index.query.task_times import read_task_times
from support.folding import files_of, opened, put_folded

_WAIT_S = 20


@pytest.fixture
def index(tmp_path: Path) -> OpenIndex:
    """Return a recorded session whose calls of actors were sent 20 s before they ran."""
    manifest = put_folded(tmp_path)
    (path,) = files_of(tmp_path, manifest, "tasks")
    earlier = f"CASE WHEN type = 'ACTOR_TASK' THEN running_ns - {_WAIT_S * 10**9} ELSE submitted_to_worker_ns END"
    before = f"CASE WHEN type = 'ACTOR_TASK' THEN running_ns - {(_WAIT_S + 1) * 10**9} ELSE pending_args_avail_ns END"
    changed = path.with_suffix(".new")
    duckdb.execute(
        f"COPY (SELECT * REPLACE ({earlier} AS submitted_to_worker_ns, {before} AS pending_args_avail_ns) "
        f"FROM '{path}') TO '{changed}' (FORMAT parquet)"
    )
    changed.replace(path)
    return opened(tmp_path, manifest)


def test_calls_that_wait_at_a_busy_actor_are_not_slow_to_start(index: OpenIndex) -> None:
    times = asyncio.run(read_task_times(index)).session
    assert times.waiting_actor_ms >= _WAIT_S * 1000
    assert times.starting_ms < 10_000


def test_picture_shows_calls_that_wait_at_a_busy_actor(index: OpenIndex) -> None:
    states = asyncio.run(read_state_timeline(index)).states
    assert max(states["waiting_actor"]) > 0
    assert states["waiting_actor"][-1] == states["starting"][-1] == 0
