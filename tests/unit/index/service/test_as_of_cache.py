"""Points in time: built one at a time for each visitor and session, and shared by close times."""

import asyncio
from pathlib import Path

import pytest

from rayhistory.index.query.query import Query
from rayhistory.index.service.builder import IndexBuilder
from rayhistory.sessions import Layout, SessionRef
from support.folding import END, NODE, RECORDED, REF, as_lines, put_folded
from support.index_builder import settings_for, with_builder

pytestmark = pytest.mark.slow

OTHER = SessionRef.checked("default", "other", REF.session)


async def build_point(builder: IndexBuilder, ref: SessionRef, visitor: str, before_end_ms: int) -> None:
    manifest = (await builder.open(ref, END, 120)).manifest
    assert manifest.last_ns
    index = await builder.open_as_of(ref, END, manifest.last_ns // 10**6 - before_end_ms, 120, visitor)
    assert await index.rows(Query("nodes"))


@pytest.mark.parametrize("busy", [("eve", REF.path), ("ada", "another session")], ids=["session", "visitor"])
def test_point_waits_for_others_of_its_session_or_visitor_only(tmp_path: Path, busy: tuple[str, str]) -> None:
    put_folded(tmp_path)
    events = tmp_path / Layout().events_key(OTHER, NODE, "node_events", 1_794_770_300_000_000_000, compressed=False)
    events.parent.mkdir(parents=True)
    events.write_bytes(as_lines(RECORDED))

    async def work(builder: IndexBuilder) -> None:
        async with builder._as_of_cache._slots.acquire(*busy):
            waiting = asyncio.create_task(build_point(builder, REF, "ada", 1_000))
            for number in range(3):
                await build_point(builder, OTHER, "ben", 1_000 + number)
            assert not waiting.done()
        await waiting

    with_builder(settings_for(tmp_path), work)


def test_tasks_are_read_one_at_a_time_for_each_visitor(tmp_path: Path) -> None:
    """Each read computes the rows of tasks as of that time."""
    manifest = put_folded(tmp_path)
    assert manifest.last_ns
    at_ms = manifest.last_ns // 10**6 - 1_000

    async def work(builder: IndexBuilder) -> None:
        mine, others = [await builder.open_as_of(REF, END, at_ms, 120, visitor) for visitor in ("ada", "ben")]
        assert await mine.rows(Query("nodes"))
        async with builder._as_of_cache._reads.acquire("ada"):
            waiting = asyncio.create_task(mine.rows(Query("tasks")))
            for number in range(1, 4):
                assert len(await others.rows(Query("tasks", limit=number))) == number
            assert not waiting.done()
        assert await waiting

    with_builder(settings_for(tmp_path), work)


def test_close_points_are_built_once(tmp_path: Path) -> None:
    """Before the first event, points are a second apart."""
    manifest = put_folded(tmp_path)
    assert manifest.first_ns
    first_ms = manifest.first_ns // 10**6

    async def work(builder: IndexBuilder) -> None:
        for before_ms in (4_600, 4_400):
            index = await builder.open_as_of(REF, END, first_ms - before_ms, 120)
            await index.rows(Query("nodes"))

    with_builder(settings_for(tmp_path), work)
    assert len({path.parent for path in (tmp_path / "cache").rglob("*@*/nodes.0.parquet")}) == 1
